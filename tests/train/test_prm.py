"""The process reward model learns what can be learned, from train templates alone; labels and contexts are right."""

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from worlds import MemoryLog, NumberedFrames, make_learner, make_policy

from guiderail.actions.types import Click, Finish, Type, Wait
from guiderail.actions.wire import action_dumps
from guiderail.envs.types import Outcome
from guiderail.params import Prompt, Provision
from guiderail.params_prm import Prm
from guiderail.rewards.prm_judge import PrmModel
from guiderail.rewards.process import StepContext
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.tasks import splits
from guiderail.tasks.types import TaskSpec
from guiderail.train import prm, prm_data, sft
from guiderail.train.prm_data import Labelled

MANIFEST = splits.build_manifest(
    Provision(templates=["click-button", "enter-text"], heldout=["click-link"], heldout_instances=2)
)
SMALL = Prm(expert=1, noised=2, random=0, policy=3, calibration=0.5, bootstrap=100)


def labelled(frames, n):
    word = "yes" if n % 2 else "no"
    step = StepContext("go", (), frames.paint(n), word, frames.paint(n + 1), "act", 160, 210, f"e{n}/0")
    return Labelled(step, n % 2 == 1, TaskSpec("toy", f"t{n % 3}", n), "expert", f"e{n}")


def test_it_learns_and_is_measured(tmp_path):
    """Whether a step was good stands in the action's word: 12 steps teach it, 8 unseen ones show it."""
    policy, frames = make_policy(), NumberedFrames()
    steps = [labelled(frames, n) for n in range(20)]
    params = Prm(epochs=10, batch=6, micro_batch=6, lr=3e-3, bootstrap=100, save_every=1000)
    model = PrmModel(policy, Prompt(), frames)
    made = prm.rows_of(model, steps[:12])
    before, _ = prm.measure(model, steps[12:], params)
    learner = make_learner(policy, params)
    sft.train(policy, learner, made.rows, made.names, frames, params, seed=0, work=tmp_path, log=MemoryLog())
    found, judged = prm.measure(model, steps[12:], params)
    assert found["auroc"]["mean"] == 1.0 and found["n"] == 8
    assert found["brier"] < before["brier"] and found["invalid_votes"] < before["invalid_votes"]
    assert [j.good for j in judged] == [s.good for s in steps[12:]] and set(found["templates"]) == {"t0", "t1", "t2"}
    assert made.tasks == sorted(s.task.id for s in steps[:12])
    facts = prm.against_facts(model, steps[:12], steps[12:], judged, params)  # act, changed, not repeated: all alike
    assert model.facts(steps[0].step) == ("act", "changed", False)
    assert facts["facts"]["auroc"]["mean"] == 0.5 and facts["over_facts"]["mean"] == 0.5


def test_tasks_of_training_and_calibration():
    train = [
        t for s in ("noised", "policy") for ts in prm_data.plan(MANIFEST, SMALL, "train", 0, s).values() for t in ts
    ]
    held = [t for ts in prm_data.plan(MANIFEST, SMALL, "heldout", 0, "policy").values() for t in ts]
    assert Counter(t.template for t in train) == {"click-button": 5, "enter-text": 5}
    assert [t.template for t in held] == ["click-link"] * 2  # half of three, rounded
    tested = {(t.template, t.seed) for s in MANIFEST["splits"] for t in splits.tasks(MANIFEST, s)}
    assert not tested & {(t.template, t.seed) for t in train + held} and len({t.id for t in train + held}) == 12
    splits.check_no_overlap(MANIFEST, [t.id for t in train])
    assert {splits.namespace_of(t.seed) for t in train + held} == {"rl"}
    with pytest.raises(splits.OverlapError):  # a judge trained on these could not be told from a leak
        splits.check_no_overlap(MANIFEST, [t.id for t in held])
    for part, name in (("train", "click-link"), ("heldout", "click-button"), ("fresh", "click-button")):
        with pytest.raises(ValueError, match="not a template of part"):
            splits.judge_task(MANIFEST, part, 0, name, "policy", 0)


def fact(text, x, y):
    word = {"x": x, "y": y, "w": 0.1, "h": 0.05, "text": text}
    return {
        "x": x,
        "y": y,
        "w": 0.1,
        "h": 0.05,
        "tag": "button",
        "id": "",
        "classes": [],
        "text": text,
        "attrs": {},
    } | {"words": [word]}


FACTS = [fact("Ok", 0.1, 0.5), fact("No", 0.6, 0.5)]


def test_wrong_steps():
    wanted = (Click(0.15, 0.525), 'click "Ok"')
    made = [prm_data.wrong(random.Random(i), wanted, FACTS, wanted) for i in range(600)]
    kinds = Counter(type(a) for a, _ in made)
    assert kinds[Wait] > 10 and kinds[Finish] > 10 and kinds[Click] > 400
    elsewhere = [a for a, thought in made if thought == 'click "No"']
    assert elsewhere and set(elsewhere) == {Click(0.65, 0.525)}  # named truly
    beside = [a for a, t in made if isinstance(a, Click) and t == 'click "Ok"' and a != wanted[0]]
    assert beside and all(0 <= v <= 1 for a in beside for v in (a.x, a.y))
    typed = [prm_data.wrong(random.Random(i), (Type("Ann"), 'type "Ann"'), FACTS, None) for i in range(300)]
    texts = {a.text for a, _ in typed if isinstance(a, Type)}
    assert {"nnA", "An", "AnnAnn"} <= texts and "Ann" not in texts
    assert [prm_data.wrong(random.Random(i), wanted, FACTS, wanted) for i in range(600)] == made


def test_sources():
    wanted, rng = (Click(0.15, 0.525), "x"), random.Random(0)
    assert prm_data.choose("expert", rng, 1.0, wanted, FACTS, None) == wanted
    assert prm_data.choose("expert", rng, 1.0, None, FACTS, None) is None
    assert prm_data.choose("noised", rng, 0.0, wanted, FACTS, None) == wanted
    assert prm_data.choose("noised", rng, 0.0, None, FACTS, None) is not None  # goes wrong rather than stop
    assert isinstance(prm_data.choose("random", rng, 0.0, wanted, FACTS, None)[0], Click)


def record(n, frame, action, votes, error=""):
    completion = Completion((1,), (-0.1,), "stop", f"text {n}")
    return StepRecord(
        n, frame, 0, 5, completion, SamplingParams(), f"thought {n}" if n else "", action_dumps(action), error, 0, 0.0,
        0.0, votes=votes,
    )  # fmt: skip


def test_steps_of_rollouts():
    frames = NumberedFrames()
    a, b, c = (frames.paint(i) for i in range(3))
    steps = (record(0, a, Click(0.5, 0.5), (1,)), record(1, b, Wait(1.0), ()), record(2, b, Finish("success"), (-1,)))
    task = TaskSpec("toy", "t", 1)

    def episode(outcome):
        return Episode("id", "g", 0, 0, task, "do it", outcome, steps, (), c)

    found = prm_data.from_episodes([episode(Outcome("failure", "agent_finish", 0.0))], frames)
    first, last = found.steps
    assert (found.unlabelled, found.env_steps, found.tokens) == (1, 3, 3)
    assert (first.step.before, first.step.after, first.step.history, first.step.kind) == (a, b, (), "act")
    assert (last.step.before, last.step.after, last.step.kind) == (b, c, "terminate")
    assert last.step.history == ("text 0", "thought 1") and last.step.action == "text 2"
    assert (first.step.said, first.step.point, first.step.ended) == ("text 0", (0.5, 0.5), False)
    assert (last.step.said, last.step.point, last.step.ended) == ("thought 2", None, True)
    assert (first.good, last.good) == (True, False) and (first.step.width, first.step.height) == (160, 210)
    lost = prm_data.from_episodes([episode(Outcome("infra_error", "crash"))], frames)
    assert lost.steps == [] and lost.env_steps == 3  # it cost what it cost
    both = found + lost
    assert (both.steps, both.unlabelled, both.env_steps, both.tokens) == (found.steps, 1, 6, 6)


def test_steps_on_disk(tmp_path):
    frames = NumberedFrames()
    steps = [labelled(frames, n) for n in range(3)]
    prm_data.write_steps(tmp_path / "s.jsonl", steps)
    assert prm_data.read_steps(tmp_path / "s.jsonl") == steps and len(list(tmp_path.iterdir())) == 1


@pytest.mark.browser
def test_real_pages_are_labelled(tmp_path):
    """An expert's steps are all good, a disturbed one's not; with other screens the same ones are played."""
    from guiderail.models.frames import FrameStore
    from guiderail.models.prompts import PromptBuilder
    from guiderail.params import Env
    from guiderail.pool.local import env_pool

    policy = make_policy()
    builder = PromptBuilder(policy.tokenizer, Prompt(), policy.image_tokens, policy.resized)
    params = Prm(expert=1, noised=4, random=1, policy=0)
    done = SimpleNamespace(n=0)

    def count(n):
        done.n += n

    with env_pool(Env(slots=3)) as pool:
        options = {"retries": 1, "done": count}
        frames = FrameStore(tmp_path / "frames", durable=False)
        many, one = (
            prm_data.run_scripted(pool, MANIFEST, params, "train", 0, builder, frames, workers=w, **options)
            for w in (3, 1)
        )
    assert many == one and done.n == 24 and many.env_steps == len(many.steps) + many.unlabelled and many.tokens == 0
    by = {s: [x for x in many.steps if x.source == s] for s in prm_data.SCRIPTED}
    assert len(by["expert"]) == 1 + 3 and all(x.good for x in by["expert"])
    assert {x.good for x in by["noised"]} == {True, False}
    assert np.mean([x.good for x in by["random"]]) < 0.5
    assert all(x.step.before in frames and x.step.after in frames for x in many.steps)
