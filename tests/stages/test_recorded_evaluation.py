"""The evaluate stage on recorded trajectories: what is kept of them, and costs that no cache changes."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

import recorded_world
from guiderail.bench.evaluate import Subject
from guiderail.models.sizing import ImageSizing
from guiderail.params import Params
from guiderail.stages import evaluate, evaluate_recorded, promotion
from guiderail.stages.context import StageContext

GOOD = ["Action: a\nCLICK(x=0.420, y=0.640)", 'Action: b\nTYPE(text="Ann")']


@pytest.fixture
def stage(processor, tmp_path, monkeypatch):
    """run(name) evaluates a checkpoint that always does the right thing, in a context of its own; asked: prompts."""
    sizing, asked = ImageSizing.from_processor(processor), []
    policy = SimpleNamespace(tokenizer=processor.tokenizer, image_tokens=sizing.tokens, resized=sizing.resized)
    engine = recorded_world.Words(processor.tokenizer, {f"goal {k}": GOOD for k in range(4)})
    monkeypatch.setattr(evaluate_recorded, "load_policy", lambda *_: asked.append(1) or policy)
    monkeypatch.setattr(evaluate_recorded, "HfEngine", lambda *_: engine)
    monkeypatch.setattr(evaluate_recorded.paths, "demos", lambda: tmp_path)
    monkeypatch.setattr(promotion, "show", lambda *_: None)
    recorded_world.write(tmp_path / "recorded")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    def run(name):
        out, work = tmp_path / name / "out", tmp_path / name / "work"
        out.mkdir(parents=True)
        work.mkdir()
        tracker = SimpleNamespace(log=lambda *_: None)
        ctx = StageContext(Params(), "evaluate", {}, out, out, work, tracker)
        results = evaluate_recorded.play(ctx, [Subject("rl", tmp_path / "model")], "sop", tmp_path / "cache")
        evaluate.write(ctx, results, {})
        return ctx, json.loads((out / "metrics.json").read_text())

    run.asked = asked
    return run


def test_costs_are_those_of_the_work_whoever_did_it(stage):
    first, found = stage("first")
    again, same = stage("again")
    assert len(stage.asked) == 1 and found == same  # played once; the numbers do not tell who did
    assert (found["env_steps"], found["replay_steps"]) == (8, 8)
    rows = pd.read_parquet(first.out / "episodes.parquet")
    assert found["tokens"] == rows["tokens"].sum() == sum(len(i) for t in rows["ids"] for i in json.loads(t)) > 0
    assert found["checkpoints"]["rl"]["env_steps"] == 8
    assert first.remembered == {"env_steps": 0, "replay_steps": 0, "tokens": 0}
    assert again.remembered == {"env_steps": 8, "replay_steps": 8, "tokens": found["tokens"]}


def test_frames_of_trajectories_worth_a_look_are_kept(stage):
    for name in ("first", "again"):  # played, and remembered
        ctx, _ = stage(name)
        rows = pd.read_parquet(ctx.out / "episodes.parquet")
        kept = {p.stem for p in (ctx.out / "frames").glob("*.png")}
        seen = {sha for text in rows["frames"] for sha in json.loads(text)}
        assert kept and kept <= seen and len(kept) == 2  # all are of one template: one episode of it
        assert all((ctx.out / "frames" / f"{sha}.png").read_bytes().startswith(b"\x89PNG") for sha in kept)
