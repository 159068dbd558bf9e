"""Judging meanwhile: what a judge is shown, and that the rollout does not wait for its verdicts."""

from __future__ import annotations

import asyncio

import pytest
from fakes import NumberEngine, World

from guiderail.envs.types import InfraError
from guiderail.models.prompts import PromptBuilder
from guiderail.models.sizing import ImageSizing
from guiderail.params import Prompt as PromptParams
from guiderail.rollout.collector import collect
from guiderail.rollout.judging import Votes
from guiderail.tasks.types import TaskSpec
from tinyvlm import NumberedFrames


class SlowJudge:
    """Votes +1 on even steps, an invalid answer on odd ones; a verdict waits until the world has gone on."""

    def __init__(self, world, lose_at=None):
        self.world, self.lose_at = world, lose_at
        self.shown, self.seeds, self.waited = [], [], 0

    async def start(self, task, seen, env, seed):
        self.seeds.append(seed)
        judge = self

        class Watch:
            async def step(self, done):
                if done.step == judge.lose_at:
                    raise InfraError("the page is gone", "crash")
                judge.shown.append((task.seed, done))
                at = len(judge.world.log)

                async def verdict():
                    for _ in range(200):
                        if done.ended or len(judge.world.log) > at:
                            break
                        await asyncio.sleep(0.001)
                    judge.waited += len(judge.world.log) > at
                    return Votes((), 1) if done.step % 2 else Votes((1, -1, 1))

                return asyncio.ensure_future(verdict())

        return Watch()


@pytest.fixture
def world():
    return World(NumberedFrames())


def play(world, processor, judge, script=None, n=1):
    sizing = ImageSizing.from_processor(processor)
    builder = PromptBuilder(
        processor.tokenizer, PromptParams(chunk_steps=2, max_new_tokens=12), sizing.tokens, sizing.resized
    )
    jobs = [(TaskSpec("fake", "numbers", i), 0) for i in range(n)]
    engine = NumberEngine(processor.tokenizer, world, script=script)
    options = {"frames": world.frames, "temperature": 1.0, "run_seed": 3, "policy_version": 7}
    return collect(engine, world.connect, jobs, builder, max_infra_retries=0, judge=judge, **options)[0]


def test_votes_are_in_the_records_and_the_rollout_does_not_wait(world, processor):
    judge = SlowJudge(world)
    episodes = play(world, processor, judge, n=2)
    assert [[(s.votes, s.votes_invalid) for s in e.steps] for e in episodes] == [
        [((1, -1, 1), 0), ((), 1), ((1, -1, 1), 0)]
    ] * 2
    assert judge.waited >= 4  # verdicts on steps 0 and 1 came after later actions
    assert len(set(judge.seeds)) == 2
    for seed, done in judge.shown:
        e = next(e for e in episodes if e.task.seed == seed)
        after = e.steps[done.step + 1].frame if done.step < 2 else e.last_frame
        assert (done.before.frame, done.after.frame) == (e.steps[done.step].frame, after)
        assert done.ended == (done.step == 2) and done.success == (True if done.ended else None)
        assert done.before.png and done.after.png and done.text == e.steps[done.step].completion.text


def test_what_did_nothing_is_not_shown(world, processor):
    judge = SlowJudge(world)
    (e,) = play(world, processor, judge, script={"task 0": ["CLICK(x=0.5, y=0.5)", "gibberish"]})
    assert [d.step for _, d in judge.shown] == [0]
    assert [(s.votes, s.votes_invalid) for s in e.steps] == [((1, -1, 1), 0), ((), 0)]


def test_a_screen_that_cannot_be_looked_at_is_an_infra_error(world, processor):
    (e,) = play(world, processor, SlowJudge(world, lose_at=1))
    assert (e.outcome.kind, e.outcome.cause, len(e.steps)) == ("infra_error", "crash", 2)
    assert e.steps[0].votes == (1, -1, 1)
