"""Retrieval: the nearest demonstration by hand, never a held-out task's, never the task's own; shown before it."""

import asyncio
import io
import json

import numpy as np
import pytest
from PIL import Image

from guiderail.actions.types import Click, Finish
from guiderail.actions.wire import action_to_json
from guiderail.bench.retrieval import Demo, DemoIndex, example_of, small, text_vector
from guiderail.envs.types import Observation, StepResult
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.models.prompts import PromptBuilder
from guiderail.params import Evaluate, Prompt, Provision
from guiderail.rollout.episode import Job, Setting, run_episode
from guiderail.rollout.types import Completion
from guiderail.tasks import splits
from guiderail.tasks.types import TaskSpec

MANIFEST = splits.build_manifest(Provision(templates=["click-button", "enter-text"], heldout=["click-link"]))


def png(grey: int, size=(160, 210)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(out, "PNG")
    return out.getvalue()


def train(template="click-button", i=0) -> TaskSpec:
    return [t for t in splits.tasks(MANIFEST, "train") if t.template == template][i]


def demo(frames, task, instruction, grey=255, steps=1) -> Demo:
    sha = frames.put(png(grey))
    step = {"frame": sha, "action": action_to_json(Click(0.5, 0.25)), "thought": "click it"}
    return Demo(task, instruction, (step,) * steps)


def index(*wanted, weight=0.7) -> DemoIndex:
    frames = FrameStore()
    return DemoIndex([demo(frames, *w) for w in wanted], frames, MANIFEST, weight)


def test_text_vectors():
    one = text_vector('Click on the "Ok" button.')
    assert np.linalg.norm(one) == pytest.approx(1) and one @ text_vector("click ON the ok, button") == pytest.approx(1)
    assert one @ text_vector("qqq zzz") == 0 and not text_vector("...").any()
    near, far = text_vector('Click on the "No" button.'), text_vector('Enter "Ann" into the text field.')
    assert 1 > one @ near > one @ far > 0
    # words a, b; pair "a b"; triples " a ", "a b", " b ": of 6 grams each, "a" shares w:a and c:" a " of its 2
    assert text_vector("a b") @ text_vector("a") == pytest.approx(2 / np.sqrt(6 * 2))


def test_screens():
    assert small(png(51)) == pytest.approx(np.full((16, 16), 0.2))
    half = Image.new("L", (32, 32), 0)
    half.paste(255, (0, 0, 16, 32))
    out = io.BytesIO()
    half.save(out, "PNG")
    assert small(out.getvalue()).mean(axis=0).tolist() == [1.0] * 8 + [0.0] * 8


def test_nearest_by_hand():
    it = index((train(i=0), "a b", 255), (train(i=1), "a", 0), (train("enter-text"), "q", 255))
    heldout = splits.tasks(MANIFEST, "heldout")[0]
    found = it.nearest(heldout, "a b", png(255))
    assert (found.demo.task, found.text, found.frame) == (train(i=0), pytest.approx(1), pytest.approx(1))
    assert found.score == pytest.approx(1)
    found = it.nearest(heldout, "a", png(255))  # 0.7 * 0.577 + 0.3 = 0.704 beats 0.7 * 1 + 0.3 * 0 = 0.7
    assert found.demo.task == train(i=0) and found.score == pytest.approx(0.7 * 2 / np.sqrt(12) + 0.3)
    text_only = DemoIndex(it.demos, it.frames, MANIFEST, 1.0)
    assert text_only.nearest(heldout, "a", png(255)).demo.task == train(i=1)
    ties = index((train(i=1), "same", 9), (train(i=0), "same", 9))
    assert ties.nearest(heldout, "same", png(9)).demo.task.id == min(train(i=0).id, train(i=1).id)


def test_a_task_never_gets_its_own_demonstration():
    it = index((train(i=0), "a b"), (train(i=1), "zzz", 0))
    assert it.nearest(train(i=0), "a b", png(255)).demo.task == train(i=1)
    other_words = TaskSpec.from_json(train(i=0).to_json() | {"wording": 2})
    assert it.nearest(other_words, "a b", png(255)).demo.task == train(i=1)
    assert index((train(i=0), "a b")).nearest(train(i=0), "a b", png(255)) is None
    assert index().nearest(train(i=0), "a b", png(255)) is None


@pytest.mark.parametrize("split", ["heldout", "fresh"])
def test_no_demonstration_of_what_is_tested(split):
    """Every task of the tested splits is refused as a demonstration, whatever its file says of it."""
    for task in splits.tasks(MANIFEST, split)[:3]:
        for claimed in (task, TaskSpec.from_json(task.to_json() | {"split": "train"})):
            with pytest.raises(InputError, match="would leak"):
                index((train(), "fine"), (claimed, "leak"))
    renamed = TaskSpec.from_json(train().to_json() | {"template": "click-link"})  # a held-out page under a train seed
    with pytest.raises(InputError, match="would leak"):
        index((renamed, "leak"))


def test_all_recorded_demonstrations_may_be_shown(tmp_path):
    frames = FrameStore(tmp_path / "frames")
    made = [demo(frames, train(), "a"), demo(frames, train("enter-text"), "b")]
    lines = [json.dumps({"task": d.task.to_json(), "instruction": d.instruction, "steps": d.steps}) for d in made]
    (tmp_path / "demos.jsonl").write_text("\n".join(lines) + "\n")
    assert [d.instruction for d in DemoIndex.read(tmp_path, MANIFEST, 0.5).demos] == ["a", "b"]
    (tmp_path / "demos.jsonl").write_text(lines[0] + "\n{}\n")
    with pytest.raises(InputError, match="line 2: KeyError"):
        DemoIndex.read(tmp_path, MANIFEST, 0.5)


def test_it_stands_before_the_task_in_a_rollout(tiny):
    """The loop asks with the first screen, and the policy's prompt holds the example, its frame first."""
    it = index((train(i=1), "press it", 0, 2))
    builder = PromptBuilder(tiny.policy.tokenizer, Prompt(), tiny.policy.image_tokens, tiny.policy.resized)
    frames, prompts = FrameStore(), []
    first = png(120)

    class Env:
        async def reset(self, task):
            return StepResult(Observation(frames.put(first), 160, 210, "do it", 0, first), False)

        async def evaluate(self):
            return 1.0

    async def ask(job, prompt, sampling):
        prompts.append(prompt)
        ids = tuple(tiny.policy.tokenizer.encode(builder.codec.render(Finish())))
        return Completion((*ids, builder.end_id), (0.0,) * (len(ids) + 1), "stop", builder.codec.render(Finish())), 0.0

    def example(task, seen):
        assert seen.png == first
        return example_of(it.nearest(task, seen.instruction, seen.png).demo, builder, it.frames, 1)

    setting = Setting(0.0, 0, 0, example)
    episode = asyncio.run(run_episode(ask, Env(), Job(0, train(i=0), 0), builder, builder.codec, frames, setting))
    assert episode.outcome.kind == "success"
    text = tiny.policy.tokenizer.decode(prompts[0].ids)
    assert (
        text.index("Example: press it\n")
        < text.index("Action: click it\nCLICK(x=0.500, y=0.250)")
        < text.index("do it")
    )
    assert text.count("Action: click it") == 1  # of two steps, one was asked for
    assert prompts[0].frames == (it.demos[0].steps[0]["frame"], episode.steps[0].frame)


def test_parameters():
    with pytest.raises(ValueError, match="retrieval names 'base', which checkpoints lacks"):
        Evaluate(checkpoints=["sft"], retrieval=["base"])
    with pytest.raises(ValueError, match="stands in it 2 times"):
        Evaluate(retrieval=["sft", "sft"])
