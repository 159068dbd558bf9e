"""An MLflow server behind a token takes everything that a local file does; its compare page reads well in a browser."""

import json
import sys
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from guiderail import tracking
from guiderail.services import service
from guiderail.tracking import Tracker, TrackingError
from tracking_world import DIGEST, TASKS, door, episode, measured, model

TOKEN = "a-token-of-a-server"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real server with two runs, which came through the door."""
    folder = tmp_path_factory.mktemp("server")
    store = f"sqlite:///{folder / 'mlflow.db'}"
    cmd = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", "127.0.0.1"]
    cmd += ["--port", "{port}", "--workers", "1", "--artifacts-destination", str(folder / "kept")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    ready = "http://127.0.0.1:{port}/health"
    with (
        pytest.MonkeyPatch.context() as patch,
        service(cmd, "mlflow", ready_url=ready, timeout=600, env=quiet, log=folder / "log") as running,
        door(int(running.url.rsplit(":", 1)[1]), TOKEN) as url,
    ):
        patch.chdir(folder)
        patch.setattr(tracking, "CLOSE_S", 240.0)
        patch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
        for recipe, won, lr in (("grpo", 10, 0.001), ("rloo", 30, 0.002)):
            options = {"run_name": f"rl@{recipe}-0", "tags": {"stage": "rl", "recipe": recipe, "seed": "0"}}
            with Tracker(folder / f"{recipe}.jsonl", uri=url, required=True, traces=1, **options) as t:
                t.note(f"made by `guiderail rl --recipe {recipe}`")
                t.inputs([TASKS])
                t.params({"rl": {"lr": lr}})
                for step in range(5):
                    t.log({"success": won / 40 * step / 4}, step)
                t.table("success", {"checkpoint": ["sft", "rl"], "mean": [0.1, won / 40]})
                t.episodes([episode, episode])
                t.figure(model(folder) / "manifest.json")
                t.register_model(model(folder), "guiderail-miniwob", f"{recipe:0<64}")
                found = measured(won)
                won_all = sum(found.success.values()) / 40
                t.promote(
                    model(folder), "guiderail-miniwob", f"{recipe:0<64}", found,
                    lambda old, w=won_all: (w - sum(old.values()) / 40, 0.2, 0.8, 40),
                )  # fmt: skip
        from mlflow import MlflowClient

        client = MlflowClient(running.url)
        experiment = client.get_experiment_by_name("guiderail").experiment_id
        runs = {r.info.run_name: r for r in client.search_runs([experiment])}
        yield SimpleNamespace(url=running.url, door=url, client=client, experiment=experiment, runs=runs, folder=folder)


def test_everything_arrived(server):
    client, run = server.client, server.runs["rl@grpo-0"]
    assert run.info.status == "FINISHED" and run.data.params == {"rl.lr": "0.001"}
    assert [m.value for m in client.get_metric_history(run.info.run_id, "success")] == pytest.approx(
        [0, 0.0625, 0.125, 0.1875, 0.25]
    )
    assert run.data.tags["mlflow.note.content"] == "made by `guiderail rl --recipe grpo`"
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("tasks of miniwob", DIGEST[:16])
    assert json.loads(dataset.dataset.profile) == {"digest": DIGEST, "train": 6, "fresh": 40}
    assert {t.key: t.value for t in dataset.tags} == {"mlflow.data.context": "evaluation"}
    kept = server.folder / "kept" / server.experiment / run.info.run_id / "artifacts"
    table = json.loads((kept / "tables/success.json").read_text())
    assert table == {"columns": ["checkpoint", "mean"], "data": [["sft", 0.1], ["rl", 0.25]]}
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "tables/success.json", "type": "table"}]
    assert (kept / "figures/manifest.json").is_file()


def test_traces_have_a_span_per_step_with_its_frame(server):
    run = server.runs["rl@rloo-0"]
    found = server.client.search_traces([server.experiment], filter_string=f"attribute.run_id = '{run.info.run_id}'")
    (trace,) = found  # one of two, as asked for
    root, *steps = sorted(trace.data.spans, key=lambda s: s.start_time_ns)
    assert [s.name for s in (root, *steps)] == ["rl click-button", '0 Action: click "Ok"', "1 mumble (unreadable)"]
    assert root.inputs == {"instruction": "Click on Ok."} and root.outputs["outcome"] == "failure"
    assert [s.end_time_ns - s.start_time_ns for s in steps] == [500_000_000, 250_000_000]
    assert steps[1].status.status_code.name == "ERROR" and steps[0].outputs["action"] == '{"kind": "Click"}'
    assert steps[0].inputs["frame"].startswith("mlflow-attachment://")
    assert trace.info.tags["split"] == "fresh"
    pictures = [p for p in (server.folder / "kept").rglob("attachments/*") if p.read_bytes()[:4] == b"\x89PNG"]
    assert len(pictures) == 4


def test_models_lead_to_their_run_and_the_better_one_is_champion(server):
    one = server.client.get_model_version_by_alias("guiderail-miniwob", "grpo-seed0")
    two = server.client.get_model_version_by_alias("guiderail-miniwob", "champion")
    assert two.version == server.client.get_model_version_by_alias("guiderail-miniwob", "candidate").version
    assert two.run_id == server.runs["rl@rloo-0"].info.run_id and two.tags["recipe"] == "rloo"
    assert two.source == f"runs:/{two.run_id}/model"  # a server refuses folders of ours
    assert one.tags["gate.miniwob"].startswith("superseded by version 2 (rloo-seed0) on 20")
    said = "champion: +50.0 points [+20.0, +80.0] against version 1 on fresh of miniwob, 40 tasks"
    assert two.tags["gate.miniwob"] == said and two.description.startswith(f"rloo-seed0: {said}. Since 20")


@pytest.mark.parametrize("required", [False, True])
def test_without_the_token_it_is_said_and_the_stage_goes_on_unless_told_otherwise(
    server, required, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "wrong")
    tracker = Tracker(tmp_path / "c.jsonl", uri=server.door, run_name="sft@0", required=required)
    tracker.log({"loss": 1.0}, 0)
    if required:
        with pytest.raises(TrackingError, match="did not reach MLflow"):
            tracker.close()
    else:
        tracker.close()
    told = capsys.readouterr().err
    assert "sft@0: did not reach MLflow at" in told and "guiderail track" in told
    assert (tmp_path / "c.jsonl").read_text() == '{"step": 0, "loss": 1.0}\n'


@pytest.mark.browser
def test_the_compare_page_in_a_browser(server):
    from playwright.sync_api import expect, sync_playwright

    from guiderail.envs import chromium

    ids = [r.info.run_id for r in server.runs.values()]
    chosen = f"runs={quote(json.dumps(ids))}&experiments={quote(json.dumps([server.experiment]))}"
    where = f"{server.url}/#/compare-runs?{chosen}"
    elsewhere: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium.find().path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 1000})
        tab.set_default_timeout(240_000)
        tab.on(
            "request", lambda r: elsewhere.append(r.url) if not r.url.startswith((server.url, "data:", "blob:")) else 0
        )
        tab.goto(where, wait_until="commit")
        expect(tab.get_by_text("Comparing 2 Runs from 1 Experiment")).to_be_visible(timeout=240_000)
        for text in ("rl@grpo-0", "rl@rloo-0", "rl.lr", "success"):
            expect(tab.get_by_text(text, exact=True).first).to_be_visible(timeout=60_000)
        body = tab.inner_text("body")
        browser.close()
    assert "0.001" in body and "0.002" in body and "0.75" in body
    assert elsewhere == []
