"""curves.jsonl is the record; MLflow gets everything when it is there and delays nothing when it is not."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from guiderail import tracking
from guiderail.tracking import Curves, Tracker, flatten


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_curves_append_rewind_and_torn_tail(tmp_path):
    path = tmp_path / "curves.jsonl"
    c = Curves(path)
    for step in range(4):
        c.append({"loss": 1.0 / (step + 1), "kl": float("nan")}, step)
    with path.open("a") as f:
        f.write('{"step": 4, "lo')  # killed while writing
    c = Curves(path)
    assert [r["step"] for r in rows(path)] == [0, 1, 2, 3]
    assert rows(path)[0] == {"step": 0, "loss": 1.0, "kl": None}
    c.rewind(2)
    c.append({"loss": 9.0}, 2)
    assert [(r["step"], r["loss"]) for r in rows(path)] == [(0, 1.0), (1, 0.5), (2, 9.0)]


def test_flatten():
    assert flatten({"rl": {"lr": 1, "lora": {"r": 2}}, "seed": 0, "none": {}}) == {
        "rl.lr": 1,
        "rl.lora.r": 2,
        "seed": 0,
        "none": {},
    }


def test_disabled_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Tracker(tmp_path / "c.jsonl", enabled=False) as t:
        t.log({"a": 1.0}, 0)
        t.tags({"a": "b"})
    assert rows(tmp_path / "c.jsonl") == [{"step": 0, "a": 1.0}]
    assert not (tmp_path / "mlflow.db").exists()


@pytest.fixture
def black_hole():
    """A server that accepts and never answers."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield f"http://127.0.0.1:{s.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_dead_server_warns_once_and_is_bounded(tmp_path, black_hole, kind, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "CLOSE_S", 8.0)
    uri = black_hole if kind == "silent" else "http://127.0.0.1:9"
    start = time.monotonic()
    with Tracker(tmp_path / "c.jsonl", uri=uri) as t:
        for step in range(100):
            t.log({"a": 1.0}, step)
        logged = time.monotonic() - start
        t.register_model(tmp_path, "m", "0" * 64)
    assert logged < 1.0
    assert time.monotonic() - start < 8.0 + 5.0
    assert len(rows(tmp_path / "c.jsonl")) == 100
    assert capsys.readouterr().err.count("warning: tracking:") == 1


PARALLEL = """
import sys
from contextlib import ExitStack
from pathlib import Path
from guiderail import tracking
from guiderail.tracking import Tracker
tracking.CLOSE_S = 280.0
names = [f"{sys.argv[1]}-{i}" for i in range(4)]
with ExitStack() as stack:
    runs = [stack.enter_context(Tracker(Path(n + ".jsonl"), run_name=n, required=True)) for n in names]
    for step in range(50):
        for t in runs:
            t.log({"a": float(step)}, step)
"""


def test_sqlite_store_gets_everything(tmp_path, monkeypatch):
    """Twelve runs of three processes meet on a fresh store (parallel migrations kill it, writers lock it); no point
    is lost. Then one run is followed in detail."""
    from mlflow import MlflowClient

    env = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PARALLEL, f"p{i}"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
        )
        for i in range(3)
    ]
    for p in started:
        _, err = p.communicate(timeout=600)
        assert p.returncode == 0 and "warning" not in err, err
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = MlflowClient(tracking.tracking_uri())
    experiment = client.get_experiment_by_name("guiderail")
    wanted = {f"p{i}-{k}" for i in range(3) for k in range(4)}
    assert {r.info.run_name for r in client.search_runs([experiment.experiment_id])} == wanted
    for run in client.search_runs([experiment.experiment_id]):
        assert [m.step for m in client.get_metric_history(run.info.run_id, "a")] == list(range(50))
        assert run.info.status == "FINISHED"

    out, final = tmp_path / ".out.partial", tmp_path / "out"
    out.mkdir()
    (out / "f.svg").write_text("<svg/>")
    state = tmp_path / "state.json"
    first = Tracker(tmp_path / "c.jsonl", run_name="rl@grpo-0", tags={"stage": "rl"}, state=state)
    first.log({"a": 1.0}, 0)
    first.close("KILLED")
    with Tracker(tmp_path / "c.jsonl", run_name="rl@grpo-0", state=state, moved=(out, final)) as t:
        t.params({"rl": {"lr": 0.5}})
        t.tags({"seed": 0})
        t.log({"a": 2.0}, 1)
        t.figure(out / "f.svg")
        t.register_model(final, "policy", "0" * 64)
        out.rename(final)
    (run,) = client.search_runs([experiment.experiment_id], "tags.stage = 'rl'")
    assert run.info.status == "FINISHED"  # the same run, gone on with
    assert [m.value for m in client.get_metric_history(run.info.run_id, "a")] == [1.0, 2.0]
    assert run.data.params == {"rl.lr": "0.5"}
    assert run.data.tags["seed"] == "0"
    assert [f.path for f in client.list_artifacts(run.info.run_id, "figures")] == ["figures/f.svg"]
    version = client.get_model_version_by_alias("policy", "candidate")
    assert version.source == "out"  # relative to the project, not a path of this machine
    assert not any(t.name == "mlflow" for t in threading.enumerate())


def test_default_uri_is_absolute_and_environment_wins(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert tracking.tracking_uri() == f"sqlite:///{Path.cwd()}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://x")
    assert tracking.tracking_uri() == "http://x"


def test_one_module_imports_mlflow():
    root = Path(tracking.__file__).parent
    found = {
        f.name for f in root.rglob("*.py") if re.search(r"^\s*(from|import) mlflow\b", f.read_text(), re.MULTILINE)
    }
    assert found == {"tracking_mlflow.py", "tracking_registry.py", "tracking_traces.py"}
