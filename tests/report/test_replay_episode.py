"""Replaying: the same actions on the same screens in a real browser, and the first difference when there is one."""

from __future__ import annotations

import argparse
import asyncio
import json
from types import SimpleNamespace

import pytest
import viewer_world

from guiderail.actions.types import Click
from guiderail.actions.wire import action_to_json
from guiderail.envs.browser import Browser
from guiderail.errors import InputError
from guiderail.params import Env
from guiderail.report.viewer import command, replay
from guiderail.tasks.types import TaskSpec

TASK = TaskSpec("miniwob", "click-test", 3)
CLICK = Click(0.5, 0.6)


def stored(first: str, last: str) -> dict:
    step = {"step": 0, "frame": first, "action": action_to_json(CLICK), "action_text": "click (0.5, 0.6)"}
    return {"steps": [step], "last_frame": last, "key": "rl/x/seed0/e", "spec": TASK.to_json()}


@pytest.mark.browser
def test_recorded_actions_are_done_again_and_a_difference_is_named(tmp_path):
    async def once() -> tuple[str, str]:
        async with Browser.launch() as browser:
            env = await browser.new_env()
            first = (await env.reset(TASK)).observation.frame
            return first, (await env.step(CLICK)).observation.frame

    first, last = asyncio.run(once())
    said: list[str] = []
    found = replay.recorded(stored(first, last), TASK, Env(), tmp_path / "frames", said.append)
    assert found.same and found.steps == 1 and "raw reward" in said[-1]
    assert {p.stem for p in (tmp_path / "frames").iterdir()} == {first, last}
    assert said[0].startswith("step 1: same screen")  # as people count
    found = replay.recorded(stored("0" * 64, last), TASK, Env(), tmp_path / "frames", said.append)
    assert not found.same and found.differs == 0 and first[:12] in found.why


def test_the_command_says_what_it_waits_for_and_counts_from_one(tmp_path, monkeypatch, capsys):
    viewer_world.make(tmp_path / "results")
    args = argparse.Namespace(
        results=str(tmp_path / "results"), work=None, params="params.yaml", policy=False, checkpoint=None,
        episode=f"{viewer_world.RUN}/miniwob/click-button/7/0/v0/0/0",
    )  # fmt: skip
    monkeypatch.setattr(replay, "recorded", lambda *_: replay.Replayed(0, 0, "another screen", None))
    with pytest.raises(SystemExit):
        command.replay(args)
    told = capsys.readouterr().err
    assert "starts a browser" in told and "differs at step 1: another screen" in told


def again(text: str, ids: tuple[int, ...], frame: str = "f", kind: str = "success"):
    step = SimpleNamespace(frame=frame, completion=SimpleNamespace(text=text, ids=ids))
    return SimpleNamespace(steps=(step,), outcome=SimpleNamespace(kind=kind, cause="env_done", detail=""))


@pytest.mark.parametrize(
    ("played", "why"),
    [(again("a", (1, 2)), ""), (again("b", (1, 2)), "wrote 'b'"), (again("a", (1, 3)), "other tokens"),
     (again("a", (1, 2), "g"), "screen g"), (again("a", (1, 2), kind="failure"), "another outcome")],
)  # fmt: skip
def test_a_policy_replay_is_compared_by_screen_text_tokens_and_outcome(played, why):
    step = {"frame": "f", "text": "a", "tokens": {"ids": [1, 2]}, "action_text": ""}
    found = replay.compared({"steps": [step], "outcome": {"kind": "success"}}, played, lambda text: None)
    assert found.same == (not why) and why in found.why


def test_weights_that_were_not_kept_are_refused(tmp_path):
    episode = {"kind": "rollout", "checkpoint": "training", "iteration": 3, "recipe": "grpo", "seed": "0", "key": "k"}
    with pytest.raises(InputError, match="iteration 3 were not kept"):
        replay.checkpoint_of(episode, tmp_path, {"prompt": {}})
    assert (
        replay.checkpoint_of(episode | {"iteration": 0}, tmp_path, {"prompt": {}}) == tmp_path / "sft/seed0/checkpoint"
    )
    with pytest.raises(InputError, match="no record"):
        replay.checkpoint_of(episode, tmp_path, {})


def test_the_task_of_an_evaluated_episode_is_that_of_the_manifest(tmp_path):
    episode = {"spec": None, "split": "fresh", "task": TASK.id}
    with pytest.raises(InputError, match="dvc checkout results/provision"):
        replay.task_of(episode, tmp_path)
    (tmp_path / "provision").mkdir()
    (tmp_path / "provision/tasks.json").write_text(json.dumps({"splits": {"fresh": [TASK.to_json()]}}))
    assert replay.task_of(episode, tmp_path) == TASK
