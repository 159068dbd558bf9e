"""The learning methods beside plain GRPO on the real chain, under DVC: thoughts of a teacher (a stub over HTTP), a
process reward model, semi-online RL, demonstrations shown at inference, recorded trajectories; Snakemake then agrees.

Minutes. Needs a Chromium and assets/tiny-vlm. `pytest -m e2e tests/e2e/test_recipes.py`.
"""

import json

import pandas as pd
import pytest
from scratch_clone import clone, sh

from chat_stub import ChatStub
from guiderail.params import load
from guiderail.workflow.presets import merged, render

RECIPES = ["step_wise_prm", "semi_online"]

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(1800)]


def answer(body):
    """A thought that fits the action it is told."""
    action = body["messages"][1]["content"][0]["text"].rsplit("Action taken on this screen: ", 1)[1]
    return ["press the target" if '"Click"' in action else "write the word"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """(clone in which the chain has run, requests that the teacher got)."""
    path = clone(tmp_path_factory.mktemp("recipes") / "guiderail")
    with ChatStub(answer) as teacher:
        sh(path, "guiderail", "preset", "recipes", "--force")
        small = load(path / "params.yaml")
        changes = {
            "sweep": {"recipe": RECIPES},
            "sft": {"cot": {"source": "teacher", "endpoint": {"url": teacher.url, "model": "stub", "price_in": 1.0}}},
            "evaluate": {"retrieval": ["base", "sft"], "episodes": 1},
        }
        tree = merged(small.model_dump(mode="json"), changes)
        (path / "params.yaml").write_text(render(type(small).model_validate(tree), "recipes, small"))
        sh(path, "dvc", "repro")
        yield path, teacher.requests


def read(path, name):
    return json.loads((path / "results" / name).read_text())


def test_every_thought_is_the_teachers_and_paid_for_once(chain):
    path, requests = chain
    demos = [json.loads(line) for line in (path / "results/demos/demos.jsonl").read_text().splitlines()]
    steps = sum(len(d["steps"]) for d in demos)
    told = [json.loads(line) for line in (path / "results/sft/seed0/cot.jsonl").read_text().splitlines()]
    assert len(told) == steps and len(requests) <= steps
    cot = read(path, "sft/seed0/metrics.json")["cot"]
    assert (cot["thoughts"], cot["missing"], cot["dropped"]) == (steps, 0, 0) and cot["price"] > 0


def test_the_judge_stands_beside_the_table_of_its_facts(chain):
    path, _ = chain
    judge = read(path, "report/summary.json")["prm"]
    assert set(judge) == {"step_wise_prm"}
    found = judge["step_wise_prm"]["0"]
    assert found["facts"]["n"] == found["n"] > 0
    if found["auroc"]["mean"] is not None:
        gain = found["auroc"]["mean"] - found["facts"]["auroc"]["mean"]
        assert found["over_facts"]["mean"] == pytest.approx(gain)
    assert read(path, "prm/step_wise_prm/seed0/metrics.json")["env_steps"] >= found["n"]
    assert "facts alone" in (path / "results/report/report.md").read_text()


def test_four_cells_of_retrieval_and_fine_tuning(chain):
    path, _ = chain
    cells = read(path, "report/summary.json")["retrieval"]["semi_online"]
    for checkpoint in ("base", "sft"):
        for kind in ("without", "with", "gain"):
            cell = cells[checkpoint]["fresh"][kind]
            assert cell["n"] > 0 and cell["lo"] <= cell["mean"] <= cell["hi"]


def test_recorded_trajectories_are_kept_step_by_step(chain):
    path, _ = chain
    folder = path / "results/evaluate/semi_online/seed0/sop"
    rows = pd.read_parquet(folder / "episodes.parquet")
    for row in rows.to_dict("records"):
        n = row["steps"]
        kept = {k: json.loads(row[k]) for k in ("thoughts", "texts", "ids", "logprobs", "matched", "frames")}
        assert {len(v) for v in kept.values()} == {n} and n > 0
        assert [len(i) for i in kept["ids"]] == [len(p) for p in kept["logprobs"]]
    recorded = path / "results/demos/recorded/frames"
    assert all((recorded / f"{sha}.png").is_file() for text in rows["frames"] for sha in json.loads(text))
    at_best = json.loads((folder / "recorded.json").read_text())["at_best"]
    assert at_best["lost"] == {} and at_best["tsr"] == 1.0


def test_costs_are_those_of_the_work_and_what_was_remembered_is_told(chain):
    path, _ = chain
    for benchmark in ("miniwob", "sop"):
        found = [read(path, f"evaluate/{r}/seed0/{benchmark}/metrics.json") for r in RECIPES]
        for checkpoint in ("base", "sft"):  # the same episodes, whichever recipe came first
            one, two = (
                {k: f["checkpoints"][checkpoint][k] for k in ("env_steps", "replay_steps", "tokens")} for f in found
            )
            assert one == two and one["env_steps"] > 0
        spent = [read(path, f"evaluate/{r}/seed0/{benchmark}/provenance.json")["cost"] for r in RECIPES]
        again = sorted(c["remembered_env_steps"] for c in spent)
        assert again[0] == 0 < again[1] < max(f["env_steps"] for f in found)


def test_both_engines_have_nothing_to_do(chain):
    path, _ = chain
    assert "up to date" in sh(path, "dvc", "status")
    assert "Nothing to be done" in sh(path, "snakemake", "-n")
