"""The real chain on the smoke preset, from nothing to the report, under Snakemake; DVC and MLflow then agree with it.

Minutes. Needs a Chromium and assets/tiny-vlm. `pytest -m e2e`.
"""

import json
import time

import pandas as pd
import pytest
from scratch_clone import clone, sh

STAGES = [
    "provision",
    "demos",
    "sft/seed0",
    "prm/grpo/seed0",
    "rl/grpo/seed0",
    "merge/grpo/seed0/model",
    "evaluate/grpo/seed0/miniwob",
    "report",
]

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A clone of the working tree in which the smoke chain has run."""
    path = clone(tmp_path_factory.mktemp("chain") / "guiderail")
    sh(path, "guiderail", "preset", "smoke", "--force")
    start = time.monotonic()
    sh(path, "snakemake", "--cores", "2")
    print(f"smoke chain: {time.monotonic() - start:.0f} s")
    return path


def test_every_stage_left_its_output_and_where_it_came_from(chain):
    for folder in STAGES:
        record = json.loads((chain / "results" / folder / "provenance.json").read_text())
        assert record["stage"] == folder.split("/")[0]
        assert record["git"]["commit"]
        assert record["cost"]["seconds"] > 0
    assert (chain / "results/sft/seed0/checkpoint").is_dir()
    assert not [f for f in (chain / ".work").glob("*/*/lock")]  # no attempt is left


def test_summary_has_the_promised_figures(chain):
    summary = json.loads((chain / "results/report/summary.json").read_text())
    for checkpoint in ("base", "sft", "rl"):
        for split in ("train", "fresh", "heldout"):
            cell = summary["success"]["grpo"][checkpoint][split]
            assert cell["n"] > 0
            assert 0 <= cell["lo"] <= cell["mean"] <= cell["hi"] <= 1
    for split in ("train", "fresh", "heldout"):
        gain = summary["gain"]["grpo"][split]
        rl, sft = (summary["success"]["grpo"][c][split]["mean"] for c in ("rl", "sft"))
        assert gain["mean"] == pytest.approx(rl - sft, abs=1e-9)


def test_summary_agrees_with_the_episodes(chain):
    """Success counted by hand from the episode table."""
    episodes = pd.read_parquet(chain / "results/evaluate/grpo/seed0/miniwob/episodes.parquet")
    summary = json.loads((chain / "results/report/summary.json").read_text())
    measured = episodes[episodes["kind"].isin(["success", "failure"])]
    for (checkpoint, split), part in measured.groupby(["checkpoint", "split"]):
        cell = summary["success"]["grpo"][checkpoint][split]
        assert cell["n"] == len(part)
        assert cell["mean"] == pytest.approx((part["kind"] == "success").mean(), abs=1e-9)


def test_both_engines_have_nothing_to_do(chain):
    start = time.monotonic()
    assert "Nothing to be done" in sh(chain, "snakemake", "-n")
    print(f"snakemake -n: {time.monotonic() - start:.1f} s")
    assert "up to date" in sh(chain, "dvc", "status")
    assert "up to date" in sh(chain, "dvc", "repro")


def test_report_parameter_redoes_the_report_only(chain):
    path = chain / "params.yaml"
    path.write_text(path.read_text().replace("title: guiderail report", "title: another title"))
    before = {s: (chain / "results" / s / "provenance.json").stat().st_mtime_ns for s in STAGES}
    sh(chain, "dvc", "repro")
    after = {s: (chain / "results" / s / "provenance.json").stat().st_mtime_ns for s in STAGES}
    assert [s for s in STAGES if before[s] != after[s]] == ["report"]
    assert "another title" in (chain / "results/report/report.md").read_text()
    assert "Nothing to be done" in sh(chain, "snakemake", "-n")


def test_tracking_has_one_run_per_stage_and_the_model(chain, monkeypatch):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{chain}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("guiderail").experiment_id])
    done = {r.data.tags["stage"]: r for r in runs if r.info.status == "FINISHED"}
    assert set(done) == {s.split("/")[0] for s in STAGES} - {"prm"}  # this recipe has no judge: nothing to show
    assert client.get_metric_history(done["rl"].info.run_id, "success")
    assert (
        done["rl"].data.tags["split_hash"] == json.loads((chain / "results/provision/tasks.json").read_text())["hash"]
    )
    assert client.search_registered_models()
