"""What an evaluation hands to MLflow: tables of plain values, traces with frames, and a gate on paired tasks."""

from types import SimpleNamespace

import pandas as pd
import pytest

from guiderail.bench import records
from guiderail.bench.evaluate import Result
from guiderail.bench.stats import paired_difference
from guiderail.envs.types import Outcome
from guiderail.params import Evaluate
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.stages import paths, promotion
from guiderail.tasks.types import TaskSpec

PNG = b"\x89PNG picture"
P = Evaluate(bootstrap=200)


def episode(seed: int, won: bool | None, suite: str = "miniwob", split: str = "fresh") -> Episode:
    said = Completion((1,), (-0.1,), "stop", "Action: click")
    step = StepRecord(0, "f0", 0, 4, said, SamplingParams(), "click", "{}", "", 0, 1.0, 3.0)
    bad = StepRecord(
        1, "f1", 0, 4, Completion((1,), (-0.1,), "stop", "mumble"), SamplingParams(), "", "", "no call", 0, 0.0, 0.0
    )
    outcome = (
        Outcome("infra_error", "crash")
        if won is None
        else Outcome("success" if won else "failure", "env_done", float(won))
    )
    task = TaskSpec(suite, f"t{seed % 2}", seed, split=split)  # type: ignore[arg-type]
    return Episode(f"{task.id}/0", task.id, 0, 0, task, "Click it.", outcome, (step, bad), (), "f1")


def result(folder, name, wins, **more):
    rows = records.table(records.row(episode(i, w, **more), name) for i, w in enumerate(wins))
    (folder / "f0.png").write_bytes(PNG)
    (folder / "f1.png").write_bytes(PNG + b"2")
    strips = [(name, str(rows["task"].iloc[0]), 0)]
    return Result(rows, {}, 1, 1, 1.0, folder, strips)


@pytest.fixture
def ctx(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = paths.merge("grpo", "0")
    model.mkdir(parents=True)
    (model / "manifest.json").write_text("{}")
    told = SimpleNamespace(tables={}, traces=[], gates=[])
    tracker = SimpleNamespace(
        table=lambda name, rows: told.tables.update({name: rows}),
        episodes=lambda makers: told.traces.extend(m() for m in makers),
        promote=lambda *args: told.gates.append(args),
    )
    return SimpleNamespace(tracker=tracker, told=told)


HEAD = {"recipe": "grpo", "seed": 0, "benchmark": "miniwob", "split_hash": "h"}


def test_tables_and_traces(ctx, tmp_path):
    results = {"rl": result(tmp_path, "rl", [True, False, None])}
    one = {"mean": 0.5, "lo": 0.1, "hi": 0.9, "n": 2}
    promotion.show(ctx, results, {"checkpoints": {"rl": {"splits": {"fresh": {"success": one}}}}})
    table = ctx.told.tables["episodes"]
    assert table["reward"] == [1.0, None, 0.0] and table["kind"] == ["success", "infra_error", "failure"]
    assert ctx.told.tables["success"] == {"measured": ["rl, fresh"], "success": [0.5]} | {
        "lo": [0.1], "hi": [0.9], "n": [2], "checkpoint": ["rl"], "split": ["fresh"],
    }  # fmt: skip
    shown = {name: list(columns)[:2] for name, columns in ctx.told.tables.items()}  # what MLflow groups by, compares
    assert shown == {"success": ["measured", "success"], "episodes": ["episode", "kind"]}
    assert table["episode"][0] == f"rl {table['task'][0]}"
    (trace,) = ctx.told.traces
    assert [(s.frame, s.text, s.error) for s in trace.steps] == [
        (PNG, "Action: click", ""),
        (PNG + b"2", "mumble", "unreadable"),
    ]
    assert [s.seconds for s in trace.steps] == [2.0, 2.0]  # the episode's four, shared
    assert (trace.name, trace.outcome, trace.tags["split"]) == ("rl t0", "success", "fresh")


def test_an_episode_of_training_has_its_own_times():
    trace = promotion.rolled_out(episode(0, True), lambda sha: sha.encode(), 7)()
    assert [(s.frame, s.seconds, s.error) for s in trace.steps] == [(b"f0", 4.0, ""), (b"f1", 0.0, "no call")]
    assert trace.tags["iteration"] == "7" and trace.reward == 1.0


def test_the_gate_compares_the_same_tasks(ctx, tmp_path):
    promotion.gate(ctx, {"rl": result(tmp_path, "rl", [True] * 8 + [None])}, HEAD, P)
    ((_, name, digest, found, better),) = ctx.told.gates
    assert name == "guiderail-miniwob" and len(digest) == 64
    assert (found.split, found.split_hash, len(found.success)) == ("fresh", "h", 8)  # what was not measured is left out
    tasks = list(found.success)
    mean, lo, hi, n = better(dict.fromkeys(tasks[:4], 0.0) | {"another": 1.0})
    assert (mean, n) == (1.0, 4) and 0 < lo <= hi
    assert better({"another": 1.0})[0] is None
    theirs = {t: float(i % 3 == 0) for i, t in enumerate(tasks)}
    template = {t: f"t{i % 2}" for i, t in enumerate(tasks)}
    report = paired_difference([found.success], [theirs], template, draws=P.bootstrap, confidence=P.confidence)
    assert better(theirs) == (-report.mean, -report.hi, -report.lo, report.n)  # the report may ask the other way round


def test_recorded_benchmarks_and_missing_models_decide_nothing(ctx, tmp_path):
    made = result(tmp_path, "rl", [True])
    promotion.gate(ctx, {"rl": made}, HEAD | {"benchmark": "sop"}, P)
    promotion.gate(ctx, {"sft": made}, HEAD, P)
    promotion.gate(ctx, {"rl": made}, HEAD | {"seed": 1}, P)
    assert ctx.told.gates == []


def test_without_fresh_tasks_the_held_out_ones_decide(ctx, tmp_path):
    promotion.gate(ctx, {"rl": result(tmp_path, "rl", [True, False], split="heldout")}, HEAD, P)
    assert ctx.told.gates[0][3].split == "heldout"


def test_plain_values_are_json():
    assert promotion.plain(pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": ["x", pd.NA]})) == {
        "a": [1, None],
        "b": ["x", None],
    }
