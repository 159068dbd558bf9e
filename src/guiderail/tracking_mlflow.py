"""The MLflow side of tracking: the store, and one run in it. The only module that imports mlflow.

Guarantees: a local store is created and migrated by one process at a time, and never left half made; mlflow is imported
only when a store is opened, with its telemetry and its chatter off. Calls wait for the store and raise what goes wrong:
`tracking` keeps both away from the stages.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

LOCK_S = 60.0
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


class MlflowRun:
    """A run that is open. `open` makes or resumes it."""

    def __init__(self, client: Any, run: str) -> None:
        self.client, self.run = client, run

    @classmethod
    def open(
        cls,
        uri: str,
        root: Path,
        experiment: str,
        name: str,
        tags: Mapping[str, str],
        state: Path | None,
        wait_s: float,
    ) -> MlflowRun:
        """Open the store at `uri` (one process at a time: parallel migrations corrupt it), start or resume the run.

        root: folder for artefacts and the lock of a local store. state: file that keeps the run id for a resumed
        attempt. wait_s: longest wait for the lock (then filelock.Timeout).
        """
        _set_quiet()
        local = uri.startswith("sqlite:")
        with _store_lock(root, wait_s):
            _hush()
            from mlflow import MlflowClient

            client = open_store(uri) if local else MlflowClient(uri)
            found = client.get_experiment_by_name(experiment)
            if found is not None:
                number = found.experiment_id
            else:
                where = (root / "mlartifacts").as_uri() if local else None
                number = client.create_experiment(experiment, artifact_location=where)
        run = _resumed(client, uri, state)
        if run is None:
            run = client.create_run(number, run_name=name or None, tags=dict(tags)).info.run_id
            if state is not None:
                state.write_text(json.dumps({"uri": uri, "run": run}))
        return cls(client, run)

    def params(self, flat: Mapping[str, Any]) -> None:
        """Log parameters."""
        from mlflow.entities import Param

        items = [Param(k, str(v)[:6000]) for k, v in flat.items()]
        for i in range(0, len(items), 100):
            self.client.log_batch(self.run, params=items[i : i + 100])

    def metrics(self, points: Sequence[tuple[str, float, int, int]]) -> None:
        """Log (key, value, time in ms, step) points."""
        from mlflow.entities import Metric

        for i in range(0, len(points), 1000):
            self.client.log_batch(self.run, metrics=[Metric(*p) for p in points[i : i + 1000]])

    def tags(self, tags: Mapping[str, Any]) -> None:
        """Set run tags."""
        for k, v in tags.items():
            self.client.set_tag(self.run, k, str(v))

    def artifact(self, path: Path, directory: str | None) -> None:
        """Upload a file or a folder below `directory`."""
        upload = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
        upload(self.run, str(path), directory)

    def image(self, name: str, png: bytes, step: int) -> None:
        """Log one PNG of the image series `name`."""
        from PIL import Image

        picture = Image.open(io.BytesIO(png)).convert("RGB")
        self.client.log_image(self.run, picture, key=name.replace("/", "."), step=step)

    def register_model(self, source: str, name: str, alias: str, tags: Mapping[str, str]) -> None:
        """A new version of `name` at the address `source`, with `alias`."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(name)
        except MlflowException as e:
            if e.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        version = self.client.create_model_version(name, source=source, run_id=self.run, tags=dict(tags))
        self.client.set_registered_model_alias(name, alias, version.version)

    def end(self, status: str) -> None:
        """End the run: FINISHED, FAILED or KILLED."""
        self.client.set_terminated(self.run, status)


def _resumed(client: Any, uri: str, state: Path | None) -> str | None:
    """Run id of an earlier, unfinished attempt, reopened; None when there is none."""
    if state is None or not state.exists():
        return None
    from mlflow.exceptions import MlflowException

    try:
        saved = json.loads(state.read_text())
        if saved["uri"] != uri:
            return None
        client.update_run(saved["run"], status="RUNNING")
        return str(saved["run"])
    except (MlflowException, ValueError, KeyError):
        return None


def _store_lock(root: Path, wait_s: float) -> FileLock:
    folder = root / ".cache"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / "mlflow.lock", timeout=wait_s)


def _set_quiet() -> None:
    for k, v in _QUIET.items():
        os.environ.setdefault(k, v)


def _hush() -> None:
    import mlflow  # noqa: F401  (its import sets the levels that are set again here)

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def prepare_store() -> str:
    """Create or migrate the default store now, so that the first stage need not. Returns its address."""
    uri = tracking_uri()
    _set_quiet()
    if uri.startswith("sqlite:"):
        with _store_lock(Path.cwd(), LOCK_S):
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
