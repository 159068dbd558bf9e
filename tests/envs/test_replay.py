"""Recorded trajectories as an environment: screens in order, patches by their budget, faults of the data as faults."""

import asyncio
import hashlib

import pytest

from guiderail.actions.types import Click
from guiderail.envs.replay import ReplayEnv
from guiderail.envs.types import InfraError
from guiderail.rewards.match import match
from guiderail.tasks.recorded import Expected, RecordedStep, Recording
from guiderail.tasks.types import TaskSpec

RIGHT, WRONG = Click(0.1, 0.1), Click(0.9, 0.9)
STEPS = tuple(RecordedStep(f"f{k}", 100, 200, Expected(RIGHT), thought=f"t{k}") for k in range(3))
RECORDING = Recording("e7", "do it", STEPS)
TASK = TaskSpec("android_control", "e7", 0)


def sha(png):
    return hashlib.sha256(png).hexdigest()


def env(threshold=0, png=lambda name: name.encode()):
    return ReplayEnv({TASK.id: RECORDING}, lambda a, s: match(a, s.expected, s.width, s.height), png, sha, threshold)


def play(replay, actions):
    async def go():
        results = [await replay.reset(TASK)]
        for a in actions:
            results.append(await replay.step(a))
            if results[-1].done:
                break
        return results, await replay.evaluate()

    return asyncio.run(go())


def decisions(results):
    return [r.info["decision"] for r in results[1:]]


def test_the_experts_actions_show_every_screen_and_pay_one():
    results, reward = play(env(), [RIGHT] * 3)
    assert [r.observation.png for r in results] == [b"f0", b"f1", b"f2", b"f2"]
    assert [r.observation.step for r in results] == [0, 1, 2, 2] and results[0].observation.frame == sha(b"f0")
    assert (results[0].observation.width, results[0].observation.instruction) == (100, "do it")
    assert decisions(results) == ["accept"] * 3 and [r.done for r in results] == [False, False, False, True]
    assert reward == results[-1].raw_reward == 1.0


@pytest.mark.parametrize(
    ("threshold", "wanted"),
    [
        (0, ["stop"]),
        (1, ["patch", "accept", "stop"]),
        (2, ["patch", "accept", "patch"]),
        (-1, ["patch", "accept", "patch"]),
    ],
)
def test_a_miss_goes_on_while_patches_last_and_never_pays(threshold, wanted):
    results, reward = play(env(threshold), [WRONG, RIGHT, WRONG])
    assert decisions(results) == wanted and results[-1].done and reward == 0.0
    info = results[1].info
    assert (info["expert"], info["thought"], info["match"].exact) == (RIGHT, "t0", False)


def test_faults_are_typed():
    with pytest.raises(ValueError, match="before reset"):
        asyncio.run(env().step(RIGHT))

    def gone(name):
        raise FileNotFoundError(name)

    with pytest.raises(InfraError, match="frame f0 is missing"):
        play(env(png=gone), [])
    with pytest.raises(ValueError, match="no such recording"):
        asyncio.run(env().reset(TaskSpec("android_control", "e8", 0)))
    replay = env()
    play(replay, [WRONG])
    with pytest.raises(ValueError, match="after the end"):
        asyncio.run(replay.step(RIGHT))
    asyncio.run(replay.close())
    assert asyncio.run(replay.oracle()) == []
