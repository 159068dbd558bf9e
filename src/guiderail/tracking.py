"""Tracking: curves.jsonl is the record, MLflow the view. The only module that imports mlflow.

Guarantees: `log` appends a line to curves.jsonl at once and never waits for MLflow; everything for MLflow is done by
one background thread in batches; whatever goes wrong there is printed once as a warning and never fails or delays the
stage by more than `CLOSE_S` seconds. One flat run per stage execution (a resumed attempt goes on in the same run),
grouped by tags. Default store: sqlite `mlflow.db` and `mlartifacts/` in the current directory; `MLFLOW_TRACKING_URI`
wins.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock

from guiderail.curves import Curves, flatten

CLOSE_S = 60.0
FLUSH_S = 3.0
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def tracking_uri(root: Path | None = None) -> str:
    """The store in use: `MLFLOW_TRACKING_URI`, else sqlite `mlflow.db` under `root` (default: current directory)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(root or Path.cwd()).resolve() / 'mlflow.db'}"


class Tracker:
    """One MLflow run of one stage execution. All methods return at once.

    `curves`: file for `log`. `tags`: run tags. `state`: file that keeps the run id for a resumed attempt. `moved`:
    (from, to) directories, for artefacts that the runner renames before the thread came to upload them.
    """

    def __init__(
        self,
        curves: Path,
        *,
        enabled: bool = True,
        experiment: str = "guiderail",
        run_name: str = "",
        tags: Mapping[str, str] | None = None,
        state: Path | None = None,
        moved: tuple[Path, Path] | None = None,
        uri: str | None = None,
    ) -> None:
        self.curves = Curves(curves)
        self.enabled, self.experiment, self.run_name = enabled, experiment, run_name
        self._tags = dict(tags or {})
        self._state, self._moved, self._uri = state, moved, uri or tracking_uri()
        self._root = Path.cwd()
        self._jobs: queue.Queue[Callable[[Any, str], None] | None] = queue.Queue()
        self._after: list[Callable[[Any, str], None]] = []
        self._points: list[tuple[str, float, int, int]] = []
        self._lock = threading.Lock()
        self._status = "FINISHED"
        self._warned = False
        self._thread: threading.Thread | None = None
        if enabled:
            self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
            self._thread.start()

    # -- what a stage calls -------------------------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append a row to curves.jsonl and hand the points to MLflow (in batches)."""
        self.curves.append(metrics, step)
        now = int(time.time() * 1000)
        with self._lock:
            self._points += [(k, float(v), now, step) for k, v in metrics.items()]

    def rewind(self, step: int) -> None:
        """A stage that resumes at `step` calls this first: rows at or after it are dropped from curves.jsonl."""
        self.curves.rewind(step)

    def params(self, params: Mapping[str, Any]) -> None:
        """Log parameters; nested mappings become dotted keys."""
        flat = flatten(params)

        def job(client: Any, run: str) -> None:
            from mlflow.entities import Param

            items = [Param(k, str(v)[:6000]) for k, v in flat.items()]
            for i in range(0, len(items), 100):
                client.log_batch(run, params=items[i : i + 100])

        self._put(job)

    def tags(self, tags: Mapping[str, Any]) -> None:
        """Set run tags."""

        def job(client: Any, run: str) -> None:
            for k, v in tags.items():
                client.set_tag(run, k, str(v))

        self._put(job)

    def artifact(self, path: Path | str, directory: str | None = None) -> None:
        """Upload a file or a folder below `directory`."""
        src = Path(path)

        def job(client: Any, run: str) -> None:
            found = self._find(src)
            (client.log_artifacts if found.is_dir() else client.log_artifact)(run, str(found), directory)

        self._put(job)

    def figure(self, path: Path | str, directory: str | None = "figures") -> None:
        """Upload a figure file."""
        self.artifact(path, directory)

    def image(self, name: str, png: bytes, step: int) -> None:
        """Log one PNG of the image series `name`."""

        def job(client: Any, run: str) -> None:
            import io

            from PIL import Image

            client.log_image(run, Image.open(io.BytesIO(png)).convert("RGB"), key=name.replace("/", "."), step=step)

        self._put(job)

    def log_cost(self, cost: Mapping[str, float]) -> None:
        """Log seconds and memory as metrics of the run only: they are not part of the curves."""
        now = int(time.time() * 1000)
        with self._lock:
            self._points += [(f"cost.{k}", float(v), now, 0) for k, v in cost.items()]

    def register_model(self, path: Path | str, name: str, alias: str) -> None:
        """Register the folder `path` (by reference, no copy) as a new version of `name`, once published."""
        src = Path(path)

        def job(client: Any, run: str) -> None:
            from mlflow.exceptions import MlflowException

            try:
                client.create_registered_model(name)
            except MlflowException as e:
                if e.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            source = (self._root / self._find(src)).resolve().as_uri()
            version = client.create_model_version(name, source=source, run_id=run, tags=self._tags)
            client.set_registered_model_alias(name, alias, version.version)

        self._after.append(job)

    def close(self, status: str = "FINISHED") -> None:
        """Flush and end the run with MLflow status FINISHED, FAILED or KILLED; waits at most `CLOSE_S` seconds."""
        self._status = status
        if self._thread is None:
            return
        if status == "FINISHED":
            for job in self._after:
                self._jobs.put(job)
        self._jobs.put(None)
        self._thread.join(CLOSE_S if status == "FINISHED" else CLOSE_S / 6)
        if self._thread.is_alive():
            self._warn(f"MLflow at {self._uri} did not answer in time")
        self._thread = None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close("FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED")

    # -- the background thread ----------------------------------------------------------------------------------------

    def _put(self, job: Callable[[Any, str], None]) -> None:
        if self._thread is not None:
            self._jobs.put(job)

    def _warn(self, message: str) -> None:
        if not self._warned:
            print(f"warning: tracking: {message}; curves.jsonl goes on", file=sys.stderr, flush=True)
        self._warned = True

    def _find(self, path: Path) -> Path:
        if not path.exists() and self._moved and path.is_relative_to(self._moved[0]):
            return self._moved[1] / path.relative_to(self._moved[0])
        return path

    def _work(self) -> None:
        try:
            client, run = self._connect()
        except Exception as e:
            self._warn(f"no MLflow at {self._uri}: {_short(e)}")
            return
        stop = False
        while not stop:
            try:
                job = self._jobs.get(timeout=FLUSH_S)
                stop = job is None
            except queue.Empty:
                job = None
            try:
                self._flush(client, run)
                if job is not None:
                    job(client, run)
                if stop:
                    client.set_terminated(run, self._status)
            except Exception as e:
                self._warn(_short(e))

    def _flush(self, client: Any, run: str) -> None:
        from mlflow.entities import Metric

        with self._lock:
            points, self._points = self._points, []
        for i in range(0, len(points), 1000):
            client.log_batch(run, metrics=[Metric(*p) for p in points[i : i + 1000]])

    def _connect(self) -> tuple[Any, str]:
        """Import mlflow, open the store (one process at a time: parallel migrations corrupt it), start or resume the
        run.
        """
        for k, v in _QUIET.items():
            os.environ.setdefault(k, v)
        local = self._uri.startswith("sqlite:")
        with _store_lock(self._root):
            _hush()
            from mlflow import MlflowClient

            client = open_store(self._uri) if local else MlflowClient(self._uri)
            found = client.get_experiment_by_name(self.experiment)
            if found is not None:
                experiment = found.experiment_id
            else:
                where = (self._root / "mlartifacts").as_uri() if local else None
                experiment = client.create_experiment(self.experiment, artifact_location=where)
        run = self._resumed(client)
        if run is None:
            run = client.create_run(experiment, run_name=self.run_name or None, tags=self._tags).info.run_id
            if self._state is not None:
                self._state.write_text(json.dumps({"uri": self._uri, "run": run}))
        return client, run

    def _resumed(self, client: Any) -> str | None:
        """Run id of an earlier, unfinished attempt, reopened; None when there is none."""
        if self._state is None or not self._state.exists():
            return None
        from mlflow.exceptions import MlflowException

        try:
            saved = json.loads(self._state.read_text())
            if saved["uri"] != self._uri:
                return None
            client.update_run(saved["run"], status="RUNNING")
            return str(saved["run"])
        except (MlflowException, ValueError, KeyError):
            return None


def _store_lock(root: Path) -> FileLock:
    folder = root / ".cache"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / "mlflow.lock", timeout=CLOSE_S)


def _hush() -> None:
    import mlflow  # noqa: F401  (its import sets the levels that are set again here)

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def prepare_store() -> str:
    """Create or migrate the default store now, so that the first stage need not. Returns its address."""
    uri = tracking_uri()
    os.environ.update({k: v for k, v in _QUIET.items() if k not in os.environ})
    if uri.startswith("sqlite:"):
        with _store_lock(Path.cwd()):
            _hush()
            open_store(uri)
    return uri


def open_store(uri: str) -> Any:
    """A client of a local sqlite store, created or migrated when needed. Call it under a lock.

    A new database is made under another name and renamed: a process that dies in the migrations would leave one that no
    later run can open.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.store.db.utils import _initialize_tables, _upgrade_db, create_sqlalchemy_engine

    path = Path(uri.removeprefix("sqlite:///"))
    if not path.exists():
        new = path.with_name(path.name + "-new")
        new.unlink(missing_ok=True)
        engine = create_sqlalchemy_engine(f"sqlite:///{new}")
        _initialize_tables(engine)
        engine.dispose()
        os.replace(new, path)
    client = MlflowClient(uri)
    try:
        client.search_experiments(max_results=1)
    except MlflowException as e:
        if "out-of-date database schema" not in str(e):
            raise
        engine = create_sqlalchemy_engine(uri)
        _upgrade_db(engine)
        engine.dispose()
        client = MlflowClient(uri)
    return client


def _short(e: BaseException) -> str:
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
