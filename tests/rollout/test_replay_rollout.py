"""Rollouts along recordings: what the history holds after a miss, what is trained on, and what is recorded."""

from __future__ import annotations

import pytest
from fakes import NumberEngine, World

from guiderail.actions.types import Click
from guiderail.envs.replay import ReplayEnv
from guiderail.models.prompts import PromptBuilder
from guiderail.models.sizing import ImageSizing
from guiderail.params import Prompt as PromptParams
from guiderail.rewards.match import PAGES, match
from guiderail.rewards.steps import step_reward
from guiderail.rollout.collector import collect
from guiderail.rollout.replay import Replay
from guiderail.tasks.recorded import Expected, RecordedStep, Recording
from guiderail.tasks.types import TaskSpec
from tinyvlm import NumberedFrames

TASK = TaskSpec("fake", "numbers", 0, max_steps=1)  # the recording's length counts, not the step limit
HIT, MISS = "Action: hit\nCLICK(x=0.100, y=0.100)", "Action: miss\nCLICK(x=0.900, y=0.900)"


class Tape:
    """A recording of `length` frames whose expert clicks at (0.1, 0.1), and an engine that follows a script."""

    def __init__(self, processor, length=5, thought="told"):
        self.world = World(NumberedFrames())
        self.processor = processor
        self.shas = [self.world.frames.paint(k + 1) for k in range(length)]
        steps = tuple(RecordedStep(s, 160, 210, Expected(Click(0.1, 0.1)), thought=thought) for s in self.shas)
        self.recording = Recording(TASK.id, "task 0", steps)
        sizing = ImageSizing.from_processor(processor)
        self.builder = PromptBuilder(
            processor.tokenizer, PromptParams(chunk_steps=3, max_new_tokens=40), sizing.tokens, sizing.resized
        )

    def play(self, texts, patch="thought_free", threshold=1, think=()):
        """The episode of a policy that says texts[step] (think[i] when it is asked for its i-th thought)."""
        tape, prompts, asked, thoughts = self, [], iter(texts), iter(think)

        class Engine(NumberEngine):
            def generate(self, given, sampling):
                (prompt,) = given
                said = self.tokenizer.decode(prompt.ids)
                prompts.append(said)
                hinted = "\nNext: CLICK" in said
                self.script["task 0"] = [next(thoughts if hinted else asked)] * 9
                return super().generate(given, sampling)

        async def connect():
            by_name = {s: tape.world.frames.png[s] for s in tape.shas}
            names = {png: sha for sha, png in by_name.items()}
            return ReplayEnv(
                {TASK.id: tape.recording},
                lambda a, s: match(a, s.expected, s.width, s.height, PAGES),
                by_name.__getitem__,
                names.__getitem__,
                threshold,
            )

        engine = Engine(self.processor.tokenizer, self.world, script={"task 0": []})
        (e,), _ = collect(
            engine, connect, [(TASK, 0)], self.builder, frames=self.world.frames, temperature=1.0, run_seed=3,
            policy_version=7, max_infra_retries=0, slots=1, play=Replay(patch, step_reward),
        )  # fmt: skip
        return e, prompts

    def texts(self, episode):
        """What each row trains on, and the row's whole text."""
        decode = self.processor.tokenizer.decode
        return [([decode(r.ids[a:b]) for a, b in r.spans], decode(r.ids)) for r in episode.rows]


@pytest.fixture
def tape(processor):
    return Tape(processor)


def test_the_experts_way(tape):
    e, _ = tape.play([HIT] * 5)
    assert (e.outcome.kind, e.outcome.cause, len(e.steps)) == ("success", "env_done", 5)
    assert [(s.reward, s.matched, s.patched) for s in e.steps] == [(1.0, True, "")] * 5
    assert [s.frame for s in e.steps] == tape.shas and [r.steps for r in e.rows] == [(0, 1, 2), (3, 4)]


def test_a_miss_is_trained_on_and_hidden_from_what_follows(tape):
    e, prompts = tape.play([HIT, MISS, HIT, HIT, HIT])
    assert [(s.matched, s.patched) for s in e.steps] == [
        (True, ""), (False, "thought_free"), (True, ""), (True, ""), (True, "")
    ]  # fmt: skip
    assert e.steps[1].reward == pytest.approx(0.1 + 0.9 * 0.5) and e.outcome.kind == "failure"
    assert [r.steps for r in e.rows] == [(0, 1), (2,), (3, 4)]  # every step once
    rows = tape.texts(e)
    assert rows[0][0] == [HIT + "<|im_end|>", MISS + "<|im_end|>"]
    assert rows[1][0] == [HIT + "<|im_end|>"] and "miss" not in rows[1][1]
    assert prompts[2].count("CLICK(x=0.100, y=0.100)<|im_end|>") == 2 and "Action: miss" not in prompts[2]
    assert "assistant\nCLICK(x=0.100" in prompts[2]  # without a thought
    for s in e.steps:  # each prompt is a prefix of the row that the step is trained in
        row = e.rows[s.chunk]
        k = row.steps.index(s.step)
        assert row.spans[k] == (s.prompt_len, s.prompt_len + len(s.completion.ids))
        assert row.frames[-len(row.spans) :][k] == s.frame
        assert prompts[s.step] == tape.processor.tokenizer.decode(row.ids[: s.prompt_len])
    assert "Done: hit; CLICK(x=0.100, y=0.100); hit\n" in prompts[3]  # the summary tells the patched turn too


def test_rollouts_share_a_recording_and_leave_it_as_it_is(tape):
    """The reference's patch writes into the expert's step, which all rollouts of a task share."""
    before = repr(tape.recording)
    first, _ = tape.play([HIT, MISS, HIT, HIT, HIT])
    assert repr(tape.recording) == before
    again, _ = tape.play([HIT, MISS, HIT, HIT, HIT])
    assert [(s.matched, s.reward, s.patched) for s in again.steps] == [
        (s.matched, s.reward, s.patched) for s in first.steps
    ]


def test_image_tokens_fit_the_frames_of_every_row(tape):
    e, _ = tape.play([MISS, MISS, HIT, MISS, HIT], threshold=-1)
    per_frame = len(tape.builder.frame_ids(160, 210)) - 2
    for r in e.rows:
        assert int((r.ids == tape.builder.image_id).sum()) == per_frame * len(r.frames)
    assert sorted(t for r in e.rows for t in r.steps) == [0, 1, 2, 3, 4]
    assert [s.patched for s in e.steps] == ["thought_free", "thought_free", "", "thought_free", ""]


@pytest.mark.parametrize(
    ("threshold", "said", "steps", "cause"),
    [
        (0, [MISS], 1, "env_done"),
        (1, [MISS, HIT, MISS], 3, "env_done"),
        (1, [MISS, "gibberish"], 2, "parse_failure"),
        (2, ["gibberish", MISS, HIT, HIT, HIT], 5, "env_done"),
    ],
)
def test_the_budget_ends_it(tape, threshold, said, steps, cause):
    e, _ = tape.play(said, threshold=threshold)
    assert (e.outcome.kind, e.outcome.cause, len(e.steps)) == ("failure", cause, steps)
    assert sum(bool(s.patched) for s in e.steps) == min(threshold, sum(t != HIT for t in said))
    assert all(s.reward == 0.0 for s in e.steps if s.parse_error)


def test_a_patch_after_the_last_frame_of_a_chunk(tape):
    e, prompts = tape.play([HIT, HIT, MISS, HIT, HIT])
    assert [r.steps for r in e.rows] == [(0, 1, 2), (3, 4)] and [s.chunk for s in e.steps] == [0, 0, 0, 1, 1]
    assert "Done: hit; hit; CLICK(x=0.100, y=0.100)\n" in prompts[3]


def test_off_policy_tells_the_annotated_thought(tape, processor):
    e, prompts = tape.play([MISS, HIT, HIT, HIT, HIT], patch="off_policy")
    assert "assistant\nAction: told\nCLICK(x=0.100" in prompts[1] and e.steps[0].patched == "off_policy"
    with pytest.raises(ValueError, match="annotated"):
        Tape(processor, thought="").play([MISS, HIT], patch="off_policy")


def test_on_policy_asks_for_a_thought_only_when_it_patches(tape):
    e, prompts = tape.play([HIT, MISS, HIT, HIT, HIT], patch="on_policy", think=["Action: mine\nCLICK(x=0.1, y=0.1)"])
    assert len(prompts) == 6 and sum("\nNext: CLICK(x=0.100, y=0.100)<|im_end|>" in p for p in prompts) == 1
    assert prompts[2].endswith("\nNext: CLICK(x=0.100, y=0.100)<|im_end|>\n<|im_start|>assistant\n")
    assert "miss" not in prompts[2] and e.steps[1].patched == "on_policy"
    assert "assistant\nAction: mine\nCLICK(x=0.100, y=0.100)<|im_end|>" in prompts[3]
    blank, prompts = tape.play([MISS, HIT, HIT, HIT, HIT], patch="on_policy", think=["no thought at all"])
    assert blank.steps[0].patched == "thought_free"


def test_a_missing_frame_is_an_infra_error(tape):
    gone = tape.shas[2]
    frames = {k: v for k, v in tape.world.frames.png.items() if k != gone}
    tape.world.frames.png = frames
    tape.shas = [s for s in tape.shas if s != gone]
    e, _ = tape.play([HIT] * 5)
    assert (e.outcome.kind, len(e.steps)) == ("infra_error", 1)
