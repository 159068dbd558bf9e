"""Gymnasium's own checks on our environments; infrastructure errors are typed; a screen is worked as it says."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from guiderail.actions.types import Click, Finish, Type
from guiderail.params import Env
from guiderail.pool.gym import KINDS, GuiEnv, GuiVectorEnv, action_of, action_space
from guiderail.pool.local import env_pool
from guiderail.tasks.types import TaskSpec

TASKS = [TaskSpec("noop", "count", n, max_steps=4) for n in range(5)]


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[str, str]]:
    with env_pool(Env(slots=3, call_timeout_s=5.0, lease_ttl_s=20.0), provider="noop") as address:
        yield address


def test_gymnasium_checks_one(pool: tuple[str, str]) -> None:
    env = GuiEnv(*pool, TASKS, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*spec.*")  # not made by gymnasium.make
        warnings.filterwarnings("ignore", message=".*not able to test alternative render modes.*")
        check_env(env)
    assert env.render().shape == (8, 8, 3)
    env.close()


def test_an_episode(pool: tuple[str, str]) -> None:
    env = GuiEnv(*pool, TASKS)
    try:
        seen, info = env.reset(seed=3, options={"task": TASKS[2]})
        assert info["task"] == "noop/count/2/0" and seen["instruction"] == "noop noop/count/2/0"
        for n in range(1, 4):
            _, reward, terminated, truncated, info = env.step(Click(0.5, 0.5))
            assert (reward, terminated, truncated, info["raw_reward"]) == (0.0, False, False, float(n))
        assert env.step(Click(0.5, 0.5))[1:4] == (0.0, False, True)  # the task's step limit
        env.reset(options={"task": TASKS[2].to_json()})
        assert env.step(Finish())[1:4] == (1.0, True, False)
        env.reset()
        with pytest.raises(ValueError, match="off the screen"):
            env.step(Click(1.5, 0.5))
        seen = env.step(Click(0.5, 0.5))[0]
        after, reward, terminated, truncated, info = env.step(Type("!crash"))
        assert (reward, terminated, truncated, info["infra_error"]) == (0.0, False, True, "crash")
        assert np.array_equal(after["screen"], seen["screen"])
        with pytest.raises(RuntimeError, match="reset first"):
            env.step(Click(0.5, 0.5))
        env.reset()
        assert env.step(Click(0.5, 0.5))[4]["raw_reward"] == 1.0
    finally:
        env.close()
        env.close()


def test_draws_depend_on_the_seed_alone(pool: tuple[str, str]) -> None:
    env = GuiEnv(*pool, TASKS)
    try:
        first = [env.reset(seed=11)[1]["task"], env.reset()[1]["task"], env.reset()[1]["task"]]
        assert [env.reset(seed=11)[1]["task"], env.reset()[1]["task"], env.reset()[1]["task"]] == first
        assert len({env.reset(seed=s)[1]["task"] for s in range(20)}) > 2
    finally:
        env.close()


def test_vector(pool: tuple[str, str]) -> None:
    envs = GuiVectorEnv(*pool, TASKS, 3)
    try:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        seen, infos = envs.reset(seed=5)
        assert seen in envs.observation_space and seen["screen"].shape == (3, 8, 8, 3)
        again, infos_again = envs.reset(seed=5)
        assert np.array_equal(seen["screen"], again["screen"]) and list(infos["task"]) == list(infos_again["task"])
        envs.action_space.seed(1)
        for _ in range(4):
            seen, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
            assert seen in envs.observation_space and reward.shape == terminated.shape == truncated.shape == (3,)
        assert truncated.tolist() == [True] * 3
        _, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())  # resets
        assert not truncated.any() and set(infos["task"]) <= {t.id for t in TASKS}
        _, reward, terminated, truncated, infos = envs.step([Finish(), Type("!crash"), Click(0.1, 0.1)])
        assert reward.tolist() == [1.0, 0.0, 0.0] and terminated.tolist() == [True, False, False]
        assert truncated.tolist() == [False, True, False] and infos["infra_error"][1] == "crash"
        _, _, terminated, truncated, infos = envs.step([Click(0.1, 0.1)] * 3)
        assert not truncated.any() and infos["raw_reward"][2] == 2.0
    finally:
        envs.close()


def test_every_kind_is_an_action() -> None:
    space = action_space()
    space.seed(3)
    kinds = set()
    for n in range(len(KINDS)):
        kinds.add(type(action_of({**space.sample(), "kind": n})).__name__)
    assert kinds == {"Click", "Move", "Drag", "Scroll", "Type", "Key", "Wait"}
