"""The comparison of recipes against hand-worked figures."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import synthetic

from guiderail.report import compare
from guiderail.report.data import load
from guiderail.report.summary import Bench, summarise


def test_cost_per_point_by_hand():
    """3000 steps for 6 points [3, 10]: 500 a point, at best 300, at worst 1000."""
    found = compare.per_point(3000, {"mean": 0.06, "lo": 0.03, "hi": 0.10})
    assert found == pytest.approx({"mean": 500, "lo": 300, "hi": 1000})
    assert compare.per_point(3000, {"mean": 0.06, "lo": -0.01, "hi": 0.10})["hi"] is None
    nothing = {"mean": None, "lo": None, "hi": None}
    assert compare.per_point(3000, {"mean": -0.01, "lo": -0.02, "hi": 0.1}) == nothing
    assert compare.per_point(None, {"mean": 0.1, "lo": 0.05, "hi": 0.2}) == nothing


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Two recipes, two seeds, on pages and on recordings; progress is success or a half."""
    results = tmp_path_factory.mktemp("compare") / "results"
    params = synthetic.make(results, recipes=("grpo", "step_wise"), seeds=(0, 1), instances=2, keep_frames=False)
    for folder in list(results.glob("evaluate/*/*/miniwob")):
        twin = Path(shutil.copytree(folder, folder.with_name("sop")))
        rows = pd.read_parquet(twin / "episodes.parquet")
        rows["reward"] = rows["success"].astype("Float64").where(rows["success"].fillna(True), 0.5)
        rows.to_parquet(twin / "episodes.parquet", index=False)
        found = json.loads((twin / "metrics.json").read_text())
        (twin / "metrics.json").write_text(json.dumps(found | {"strips": [], "bootstrap": 100}))
    for seed, cpu in ((0, 100.0), (1, 300.0)):
        file = results / f"rl/grpo/seed{seed}/provenance.json"
        file.write_text(json.dumps({"cost": json.loads(file.read_text())["cost"] | {"cpu_seconds": cpu}}))
    sweep = params.sweep.model_copy(update={"benchmark": ["miniwob", "sop"]})
    return results, params.model_copy(update={"sweep": sweep})


def test_recipes_side_by_side(tree):
    results, params = tree
    data = load(params, results)
    summary = summarise(data)
    bench = Bench(data, "sop")
    bench.draws = 200
    summary["benchmarks"]["sop"]["scores"] = compare.recorded_scores(bench)
    rows = pd.read_parquet(results / "evaluate/grpo/seed0/sop/episodes.parquet")
    rows = pd.concat([rows, pd.read_parquet(results / "evaluate/grpo/seed1/sop/episodes.parquet")])
    done = rows[(rows.checkpoint == "rl") & (rows.split == "fresh") & rows.success.notna()]
    tsr = done.success.astype(float).mean()
    scores = summary["benchmarks"]["sop"]["scores"]["grpo"]["rl"]["fresh"]
    assert scores["tsr"]["mean"] == pytest.approx(tsr, abs=0.02)  # a task missing in one seed weighs the other
    assert scores["pg"]["mean"] == pytest.approx(0.5 + scores["tsr"]["mean"] / 2)
    assert scores["score"]["mean"] == pytest.approx((scores["pg"]["mean"] + scores["tsr"]["mean"]) / 2)
    found = compare.comparison(data, summary["benchmarks"])
    assert list(found) == ["grpo", "step_wise"]
    assert found["grpo"]["success"] == summary["success"]["grpo"]["rl"]["fresh"]
    assert found["grpo"]["gain"] == summary["gain"]["grpo"]["fresh"] and found["grpo"]["sop"] == scores["score"]
    assert found["grpo"]["cost"] == {"cpu_seconds": 200.0, "env_steps": 4000, "replay_steps": None, "tokens": 90000}
    gain = 100 * found["grpo"]["gain"]["mean"]
    assert found["grpo"]["per_point"]["cpu_seconds"]["mean"] == pytest.approx(200 / gain)
    shown = compare.reading(found)
    assert list(shown["recipe"]) == ["grpo", "step_wise"] and "SOP score" in shown
    csv = compare.table(found)
    assert list(csv["recipe"]) == ["grpo", "step_wise"] and csv["sop_mean"][0] == scores["score"]["mean"]
    lines = compare.recorded_table(summary["benchmarks"]["sop"])
    assert len(lines) == 2 * 3 * 3 and set(lines["checkpoint"]) == {"base", "sft", "rl"}


def test_without_recordings_there_is_no_sop(tree):
    results, params = tree
    sweep = params.sweep.model_copy(update={"benchmark": ["miniwob"]})
    data = load(params.model_copy(update={"sweep": sweep}), results)
    found = compare.comparison(data, summarise(data)["benchmarks"])
    assert found["grpo"]["sop"] is None and "SOP score" not in compare.reading(found)
    assert Bench(data, "miniwob").splits == ["train", "fresh", "heldout"]
