"""`guiderail track` rebuilds MLflow's view from outputs alone, once; runs say what they are."""

import json

import pytest

from guiderail.errors import InputError
from guiderail.params import Params
from guiderail.stages import track
from guiderail.stages.describe import datasets, description, differences, shown, tags_of
from guiderail.workflow.spec import Job

DIGEST = "d" * 64
RECORD = {
    "stage": "sft",
    "axes": {"seed": "0"},
    "params": {"sft": {"lr": 0.5, "epochs": Params().sft.epochs}},
    "inputs": {"src/guiderail/train": "a" * 64, "results/demos/demos.jsonl": "b" * 64, "plugins/tasks": "c" * 64},
    "digest": DIGEST,
    "command": ["guiderail", "sft", "--seed", "0"],
    "git": {"commit": "e" * 40, "dirty": True, "changed": ["x"]},
    "dvc_lock_sha256": None,
    "cost": {"seconds": 2.0},
}
ROWS = [{"step": 0, "loss": 1.5, "kl": None}, {"step": 1, "loss": 0.5, "kl": 0.25}]


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "results/sft/seed0"
    out.mkdir(parents=True)
    (out / "provenance.json").write_text(json.dumps(RECORD))
    (out / "curves.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return out.relative_to(tmp_path)


def test_an_output_that_mlflow_lacks_is_sent_once(output):
    from mlflow import MlflowClient

    tracking = Params().tracking
    assert track.run([output.parent], tracking) == 1
    assert track.run([output], tracking) == 0  # it is there now
    client = MlflowClient(track.tracking_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("guiderail").experiment_id])
    assert (run.info.run_name, run.info.status) == ("sft@0", "FINISHED")
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")] == [(0, 1.5), (1, 0.5)]
    assert run.data.metrics["cost.seconds"] == 2.0 and run.data.params["params.sft.lr"] == "0.5"
    assert run.data.tags["tracked"] == "afterwards" and run.data.tags["seed"] == "0"
    assert [d.dataset.name for d in run.inputs.dataset_inputs] == ["demos/demos.jsonl"]
    with (output / "curves.jsonl").open("a") as f:
        f.write('{"step": 2, "loss": 0.1}\n')
    assert track.run([output], tracking) == 1  # a point more than MLflow has


def test_outputs_are_read_and_never_written(output, monkeypatch):
    """They are DVC's: a file that is made anew, or a leftover beside it, would be a change."""
    places = [output, *output.iterdir()]
    before = [(p.stat().st_ino, p.stat().st_mtime_ns) for p in places]
    asked = []
    monkeypatch.setattr(track, "whole", lambda tracking, record, rows: asked.append(rows) or True)
    assert track.run([output], Params().tracking) == 0 and asked == [ROWS]
    assert [(p.stat().st_ino, p.stat().st_mtime_ns) for p in places] == before


def test_a_folder_without_outputs_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no provenance\.json there or below"):
        track.run([tmp_path], Params().tracking)


def test_what_a_run_says_of_itself(output):
    text = description(RECORD, output, "http://127.0.0.1:8766")
    assert text.startswith("`guiderail sft --seed 0`")
    assert "`eeeeeeeeeeee`, with uncommitted changes" in text and "`sft.lr: 0.5`" in text
    assert "explorer" not in text  # the warm-up plays no episodes
    played = description(RECORD | {"stage": "rl"}, output, "http://127.0.0.1:8766/")
    assert "http://127.0.0.1:8766/?run=sft%2Fseed0" in played
    assert differences(RECORD["params"]) == {"sft.lr": 0.5}


def test_a_recipe_without_a_judge_leaves_no_empty_run(output):
    """grpo asks for none, step_wise_prm does: only the second has a run to show, then and afterwards."""
    judge = output.parents[1] / "prm/grpo/seed0/judge"
    judge.mkdir(parents=True)
    (judge / "judge.json").write_text('{"needed": false}')
    record = RECORD | {"stage": "prm", "axes": {"recipe": "grpo", "seed": "0"}}
    (judge.parent / "provenance.json").write_text(json.dumps(record))
    assert track.run([judge.parent], Params().tracking) == 0
    params = Params.model_validate({"sweep": {"recipe": ["grpo", "step_wise_prm"]}})
    shows = {r: shown(Job("prm", {"recipe": r, "seed": "0"}), params) for r in params.sweep.recipe}
    assert shows == {"grpo": False, "step_wise_prm": True}
    assert shown(Job("rl", {"recipe": "grpo", "seed": "0"}), params)


def test_the_columns_of_mlflow_say_something(output):
    tags = tags_of(Job("sft", {"seed": "0"}), RECORD)
    assert tags["mlflow.source.name"] == "guiderail sft --seed 0" and tags["mlflow.source.git.commit"] == "e" * 40


def test_code_is_no_data_set(output):
    (found,) = datasets(RECORD)
    assert (found.name, found.digest, found.path) == ("demos/demos.jsonl", "b" * 64, "results/demos/demos.jsonl")
    assert found.context == "training"
    (of_evaluation,) = datasets(RECORD | {"stage": "evaluate"})
    assert of_evaluation.context == "evaluation"
