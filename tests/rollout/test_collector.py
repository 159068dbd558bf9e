"""The collector and the episode loop against fake screens: alignment, outcomes, faults, batching, determinism."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from fakes import FakeEnv, NumberEngine, World, lost

from guiderail.actions.codec import get_codec
from guiderail.actions.types import Click, Finish, Parsed
from guiderail.actions.wire import action_from_json
from guiderail.models.prompts import PromptBuilder
from guiderail.models.sizing import ImageSizing
from guiderail.params import Prompt as PromptParams
from guiderail.rollout.collector import collect, split_groups
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.episode import Job
from guiderail.seeds import derive_seed
from guiderail.tasks.types import TaskSpec
from tinyvlm import NumberedFrames


def task(seed: int, **kw) -> TaskSpec:
    return TaskSpec("fake", "numbers", seed, **kw)


def groups(n: int, size: int, **kw):
    return [(task(i, **kw), s) for i in range(n) for s in range(size)]


@pytest.fixture
def world():
    return World(NumberedFrames())


@pytest.fixture
def play(processor, world):
    """play(tasks, **options) -> (episodes, stats, engine) in `world`."""

    def go(tasks, engine=None, script=None, codec=None, chunk=2, tokens=12, **kw):
        params = PromptParams(chunk_steps=chunk, max_new_tokens=tokens)
        sizing = ImageSizing.from_processor(processor)
        builder = PromptBuilder(processor.tokenizer, params, sizing.tokens, sizing.resized)
        engine = engine or NumberEngine(processor.tokenizer, world, script=script)
        options = {
            "frames": world.frames,
            "temperature": 1.0,
            "run_seed": 3,
            "policy_version": 7,
            "max_infra_retries": 2,
        }
        episodes, stats = collect(engine, world.connect, tasks, builder, codec, **(options | kw))
        assert world.open == 0
        return episodes, stats, engine

    return go


def test_row_t_holds_the_frame_the_policy_saw(world, play):
    episodes, stats, _ = play(groups(5, 3), slots=6)
    number = world.frames.number
    assert len(episodes) == 15 and stats.env_steps == 45 == len(world.log)
    shown = [n for e in episodes for n in [number[s.frame] for s in e.steps]]
    assert len(set(shown)) == 45  # every frame is unique, so a shifted row could not go unnoticed
    acted = {n: a for _, n, a in world.log}
    for e in episodes:
        assert e.outcome.kind == "success" and e.outcome.cause == "env_done" and e.outcome.reward == 1.0
        for s in e.steps:
            seen = number[s.frame]
            assert s.thought == f"see {seen}"
            assert json.loads(s.action)["x"] == seen / 1000 == acted[seen].x
        assert [number[f] for r in e.rows for f in r.frames] == [number[s.frame] for s in e.steps]
        assert [t for r in e.rows for t in r.steps] == [0, 1, 2] and [len(r.frames) for r in e.rows] == [2, 1]
        assert number[e.last_frame] not in [number[s.frame] for s in e.steps]  # the screen after the last action


def test_rows_hold_the_sampled_tokens(processor, play):
    (episode,), _, _ = play(groups(1, 1), chunk=2)
    spans = [r.ids[a:b] for r in episode.rows for a, b in r.spans]
    assert [tuple(s) for s in spans] == [s.completion.ids for s in episode.steps]
    logps = np.concatenate([r.logprobs for r in episode.rows])
    assert np.allclose(logps, np.concatenate([s.completion.logprobs for s in episode.steps]))
    for s in episode.steps:
        row, k = episode.rows[s.chunk], episode.rows[s.chunk].steps.index(s.step)
        assert row.spans[k][0] == s.prompt_len and row.frames[k] == s.frame


OUTCOMES = [
    (["gibberish"], None, "failure", "parse_failure", 0.0, 1),
    (['TYPE(text="a")'], None, "failure", "parse_failure", 0.0, 1),  # the fake screen only knows clicks
    (["FAIL()"], None, "failure", "agent_fail", 0.0, 1),
    (["DONE()"], 1.0, "success", "agent_finish", 1.0, 1),
    (["DONE()"], 0.99, "failure", "agent_finish", 0.0, 1),
    (["DONE()"], float("nan"), "judge_error", "judge", None, 1),
    (["DONE()"], RuntimeError("no verdict"), "judge_error", "judge", None, 1),
    (["DONE()"], lost("timeout"), "infra_error", "timeout", None, 1),
    (["CLICK(x=0.999, y=0.5)", "DONE()"], 1.0, "success", "agent_finish", 1.0, 2),
    (["CLICK(x=0.999, y=0.5)"] * 3, None, "failure", "env_done", 0.0, 3),
]


@pytest.mark.parametrize(("texts", "verdict", "kind", "cause", "reward", "steps"), OUTCOMES)
def test_outcomes(world, play, texts, verdict, kind, cause, reward, steps):
    world.judge[task(0).id] = verdict
    (e,), stats, _ = play(groups(1, 1), script={"task 0": texts}, chunk=3, max_infra_retries=0)
    assert (e.outcome.kind, e.outcome.cause, e.outcome.reward, len(e.steps)) == (kind, cause, reward, steps)
    assert stats.errors == ({cause: 1} if reward is None else {})
    assert (e.steps[0].parse_error != "") == (cause == "parse_failure")
    if cause == "parse_failure":
        assert e.outcome.detail == e.steps[0].parse_error
    assert sum(len(r.spans) for r in e.rows) == steps


def test_pixels_of_an_answer_are_those_of_the_resized_frame(world, play, processor):
    """160x210 frames reach the model as 160x224: the middle of what it sees is the middle of the screen."""
    shown = ImageSizing.from_processor(processor).resized(160, 210)
    assert shown == (160, 224)
    texts = [f'<action>{{"action": "click", "coordinate": [{x}, {y}]}}</action>' for x, y in [(80, 112), (40, 224)]]
    (e,), _, _ = play(groups(1, 1), script={"task 0": [*texts, texts[0]]}, codec=get_codec("ui_s1"), tokens=120)
    assert [s.parse_error for s in e.steps] == ["", "", ""]
    acted = [action_from_json(s.action) for s in e.steps]
    assert acted == [Click(0.5, 0.5), Click(0.25, 1.0), Click(0.5, 0.5)]


def test_step_limit_and_threshold(world, play):
    (e,), _, _ = play([(task(0, max_steps=2), 0)])
    assert (e.outcome.kind, e.outcome.cause, e.outcome.reward, len(e.steps)) == ("failure", "step_limit", 0.0, 2)
    world.judge[task(1).id] = 0.5
    (e,), _, _ = play([(task(1, threshold=0.5), 0)], script={"task 1": ["DONE()"]})
    assert e.outcome.kind == "success"


def test_where_the_agent_ends_episodes_the_judge_sees_the_last_state_and_what_was_said(world, play, monkeypatch):
    monkeypatch.setattr("guiderail.rollout.episode.open_ended", lambda suite: suite == "fake")
    told = []
    do = FakeEnv.step

    async def step(env, action):
        if not isinstance(action, Finish):
            return await do(env, action)
        told.append(action.status)
        world.judge[env.task.id] = float(action.status == "failure")  # a task that cannot be done
        return await env._show(env.at + 1, True, 0.0)

    monkeypatch.setattr(FakeEnv, "step", step)
    world.judge[task(0, max_steps=2).id] = 1.0
    (e,), _, _ = play([(task(0, max_steps=2), 0)])
    assert (e.outcome.kind, e.outcome.cause, e.outcome.reward) == ("success", "step_limit", 1.0)
    for said, kind, cause in (("FAIL()", "success", "agent_fail"), ("DONE()", "failure", "agent_finish")):
        (e,), _, _ = play([(task(1), 0)], script={"task 1": [said]})
        assert (e.outcome.kind, e.outcome.cause, len(e.steps)) == (kind, cause, 1)
    assert told == ["failure", "success"]
    world.judge[task(2, max_steps=1).id] = RuntimeError("broken judge")
    (e, *_), _, _ = play([(task(2, max_steps=1), 0)])
    assert (e.outcome.kind, e.outcome.reward) == ("judge_error", None)


def test_what_else_changed_is_kept_and_a_machine_that_fails_then_changes_no_outcome(world, play, monkeypatch):
    monkeypatch.setattr("guiderail.rollout.episode.open_ended", lambda suite: suite == "fake")
    said = {0: ["made Desktop/x"], 1: lost(), 2: None}

    async def side_effects(env):
        found = said[env.task.seed]
        if isinstance(found, Exception):
            raise found
        return found

    (e,), _, _ = play([(task(0), 0)])
    assert e.side_effects is None  # a screen that cannot tell
    monkeypatch.setattr(FakeEnv, "side_effects", side_effects, raising=False)
    episodes, _, _ = play(groups(3, 1))
    assert [e.side_effects for e in episodes] == [("made Desktop/x",), None, None]
    assert [e.outcome.kind for e in episodes] == ["success"] * 3 and [e.attempt for e in episodes] == [0, 0, 0]
    world.faults[(task(0).id, 2, 0)] = lost()
    (e,), _, _ = play([(task(0), 0)], max_infra_retries=0)
    assert (e.outcome.kind, e.side_effects) == ("infra_error", None)


@pytest.mark.parametrize("step", [0, 1])
def test_infra_errors_are_resampled_on_a_new_lease(world, play, step):
    world.faults[(task(1).id, 0, step)] = lost("crash")
    world.faults[(task(1).id, 1, step)] = lost("timeout")
    episodes, stats, engine = play(groups(3, 1), slots=2)
    mine = [e for e in episodes if e.task.seed == 1]
    assert [(e.attempt, e.outcome.kind, e.outcome.cause, e.outcome.reward) for e in mine] == [
        (0, "infra_error", "crash", None),
        (1, "infra_error", "timeout", None),
        (2, "success", "env_done", 1.0),
    ]
    assert [len(e.steps) for e in mine] == [step, step, 3]
    assert world.opened == 2 + 2 and stats.errors == {"crash": 1, "timeout": 1} and stats.episodes == 5
    assert len({e.id for e in episodes}) == 5 and [e.task.seed for e in episodes] == [0, 1, 1, 1, 2]
    assert len(set(engine.seeds)) == len(engine.seeds)  # an attempt draws anew


def test_retries_end(world, play):
    for attempt in range(5):
        world.faults[(task(0).id, attempt, 0)] = lost("lease_lost")
    done = []
    episodes, stats, _ = play(groups(2, 1), max_infra_retries=2, progress=lambda n, total: done.append((n, total)))
    assert [(e.task.seed, e.outcome.kind) for e in episodes] == [(0, "infra_error")] * 3 + [(1, "success")]
    assert stats.errors == {"lease_lost": 3} and done == [(1, 2), (2, 2)]


def test_judge_errors_are_resampled_on_the_same_lease(world, play):
    world.judge[task(0).id] = RuntimeError("no verdict")
    episodes, stats, _ = play(groups(1, 1), script={"task 0": ["DONE()"]}, max_infra_retries=1)
    assert [e.outcome.kind for e in episodes] == ["judge_error"] * 2
    assert stats.errors == {"judge": 2} and world.opened == 1 and "no verdict" in episodes[0].outcome.detail


def test_a_frame_that_is_not_its_digest_is_an_infra_error(world, play):
    png = world.frames.png
    paint = world.frames.paint
    other = paint(999)
    world.frames.paint = lambda n: (sha := paint(n), png.update({sha: png[other]}) if n == 1 else None)[0]
    episodes, _, _ = play(groups(1, 1), max_infra_retries=1)
    assert [e.outcome.kind for e in episodes] == ["infra_error", "success"]
    assert "came with other bytes" in episodes[0].outcome.detail


def test_batches_depend_on_tasks_not_on_timing(world, play):
    seen, ids = [], []
    for trial in range(3):
        rng = random.Random(trial)
        world.delay = lambda rng=rng: rng.random() * 0.004
        world.next_number, world.attempts = 0, {}
        world.length = 1
        script = {f"task {i}": ["CLICK(x=0.5, y=0.5)"] if i % 3 else ["oops"] for i in range(9)}
        episodes, _, engine = play(groups(9, 2), slots=6, script=script)
        seen.append(sorted(engine.batches))
        ids.append([e.id for e in episodes])
    assert seen[0] == seen[1] == seen[2] and ids[0] == ids[1] == ids[2]
    assert sorted(len(b) for b in seen[0])[-1] == 3
    first = episodes[0]
    assert first.steps[0].sampling.seed == derive_seed("step", 3, 7, first.task.id, first.sibling, 0, 0)


def test_screens_work_while_the_engine_generates(processor, world, play):
    engine = NumberEngine(processor.tokenizer, world, seconds=0.15)  # long enough on a loaded machine
    _, stats, _ = play(groups(8, 1), engine=engine, slots=8)
    assert world.steps_while_busy > 0 and stats.batches == 6 and world.most_open == 8


@pytest.mark.parametrize("slots", [1, 2, 3, 50])
def test_slots_are_a_bound(world, play, slots):
    episodes, stats, engine = play(groups(3, 2), slots=slots)
    assert len(episodes) == 6 and all(e.outcome.kind == "success" for e in episodes)
    assert world.most_open == min(slots, 6) and stats.tokens == sum(
        len(s.completion.ids) for e in episodes for s in e.steps
    )
    assert sum(len(b) for b in engine.batches) == 18


def test_defects_propagate_and_close_every_screen(processor, world, play):
    engine = NumberEngine(processor.tokenizer, world)
    engine.fail_at = 2
    with pytest.raises(MemoryError, match="out of memory"):
        play(groups(6, 2), engine=engine, slots=4)
    assert world.open == 0
    world.connect_faults = [lost()] * 50
    with pytest.raises(type(lost()), match="page is gone"):
        play(groups(2, 2), slots=2, max_infra_retries=1)
    with pytest.raises(ValueError, match=r"listed twice: .*fake/numbers/0/0"):
        play([(task(0), 0), (task(0), 0)])
    assert play([])[0] == []


def test_siblings_share_a_half():
    jobs = [Job(i, t, s) for i, (t, s) in enumerate(groups(5, 3))]
    a, b = split_groups(jobs, 2)
    assert [j.task.seed for j in a] == [0] * 3 + [2] * 3 + [4] * 3 and [j.task.seed for j in b] == [1] * 3 + [3] * 3


class ClickAnything:
    """A codec that reads a click in any text, so that a random model plays whole episodes."""

    def at(self, width, height):
        return self

    def parse(self, text):
        return Parsed(Click(0.5, 0.5), "try")

    def render(self, action, thought=""):
        return get_codec("guiderail").render(action, thought)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_with_the_real_engine_rows_score_as_sampled_and_runs_repeat(tiny, world, play, temperature):
    world.length = 4
    runs = []
    for _ in range(2):
        world.next_number, world.attempts = 0, {}
        engine = HfEngine(tiny.policy, world.frames)
        runs.append(
            play(groups(3, 2), engine=engine, codec=ClickAnything(), chunk=3, slots=64, temperature=temperature)
        )
    episodes, stats, engine = runs[0]
    assert [len(e.steps) for e in episodes] == [4] * 6 and stats.tokens == engine.tokens
    rows = [r for e in episodes for r in e.rows]
    scored = tiny.policy.logprobs(rows, world.frames, temperature=None).logp.numpy()
    np.testing.assert_allclose(scored, np.concatenate([r.logprobs for r in rows]), atol=1e-4, rtol=0)
    ids = [[s.completion.ids for e in run[0] for s in e.steps] for run in runs]
    assert ids[0] == ids[1] and len(set(ids[0])) == len(ids[0])
