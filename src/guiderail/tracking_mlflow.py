"""The MLflow side of tracking: the store, and one run in it. With `tracking_registry` and `tracking_traces` the only
modules that import mlflow.

Guarantees: a local store is created and migrated by one process at a time, and never left half made; mlflow is imported
only when a store is opened, with its telemetry and its chatter off. Calls wait for the store and raise what goes wrong:
`tracking` keeps both away from the stages.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

LOCK_S = 60.0
KIND = {"mlflow.experimentKind": "custom_model_development"}  # MLflow's pages begin with runs, not with chat traces
DIGEST = 16  # characters of a dataset's digest that are shown; MLflow keeps 36 at most
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def tracking_uri(root: Path | None = None) -> str:
    """The store in use: `MLFLOW_TRACKING_URI`, else sqlite `mlflow.db` under `root` (default: current directory)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(root or Path.cwd()).resolve() / 'mlflow.db'}"


@dataclass(frozen=True)
class DataSet:
    """Something that a run read: `name` and `digest` as our manifests have them, where it lay, what it was for."""

    name: str
    digest: str
    path: str
    context: str
    counts: Mapping[str, int] = field(default_factory=dict)


class MlflowRun:
    """A run that is open. `open` makes or resumes it."""

    def __init__(
        self, client: Any, run: str, experiment: str = "", local: bool = True, root: Path | None = None
    ) -> None:
        self.client, self.run, self.experiment, self.local, self.root = client, run, experiment, local, root

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
        local = uri.startswith("sqlite:")
        client = _client(uri, root, wait_s)
        with _store_lock(root, wait_s):
            number = _experiment(client, experiment, (root / "mlartifacts").as_uri() if local else None)
        run = _resumed(client, uri, state)
        if run is None:
            run = client.create_run(number, run_name=name or None, tags=dict(tags)).info.run_id
            if state is not None:
                state.write_text(json.dumps({"uri": uri, "run": run}))
        return cls(client, run, number, local, root)

    @staticmethod
    def holds(uri: str, root: Path, experiment: str, digest: str, points: Mapping[str, int]) -> bool:
        """Whether the store has a finished run with this `digest` tag and so many points of each curve."""
        client = _client(uri, root, LOCK_S)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return False
        wanted = f"tags.digest = '{digest}' and attributes.status = 'FINISHED'"
        for run in client.search_runs([found.experiment_id], wanted):
            if all(len(client.get_metric_history(run.info.run_id, k)) >= n for k, n in points.items()):
                return True
        return False

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

    def table(self, name: str, rows: Mapping[str, Sequence[Any]]) -> None:
        """Log columns of equal length as the table `name` (a .json below tables/), in place of an earlier one."""
        from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

        file = f"tables/{name}.json"
        text = json.dumps({"columns": list(rows), "data": [list(r) for r in zip(*rows.values(), strict=True)]})
        self.client.log_text(self.run, text, file)
        tag = self.client.get_run(self.run).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]")
        entry = {"path": file, "type": "table"}
        known = json.loads(tag)
        if entry not in known:  # what makes MLflow show it as a table (see mlflow.log_table, which would append)
            self.client.set_tag(self.run, MLFLOW_LOGGED_ARTIFACTS, json.dumps([*known, entry]))

    def inputs(self, datasets: Sequence[DataSet]) -> None:
        """Log what the run read. The start of each digest is shown, the whole one stands in the profile."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        made = []
        for d in datasets:
            source = json.dumps({"uri": d.path})
            profile = json.dumps({"digest": d.digest, **d.counts})
            entity = Dataset(d.name, d.digest[:DIGEST], "local", source, schema=None, profile=profile)
            made.append(DatasetInput(entity, tags=[InputTag("mlflow.data.context", d.context)]))
        self.client.log_inputs(self.run, datasets=made)

    def note(self, text: str) -> None:
        """The run's description, Markdown."""
        self.client.set_tag(self.run, "mlflow.note.content", text)

    def end(self, status: str) -> None:
        """End the run: FINISHED, FAILED or KILLED."""
        self.client.set_terminated(self.run, status)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One process at a time in this block, where the store is a local one."""
        if not self.local:
            yield
            return
        assert self.root is not None
        with _store_lock(self.root, LOCK_S):
            yield


def _experiment(client: Any, name: str, where: str | None) -> str:
    """Id of the experiment `name`, made when there is none (by us, or on a server by somebody at the same moment)."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=where, tags=KIND))
        except MlflowException as e:
            if e.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    return str(found.experiment_id)


def _client(uri: str, root: Path, wait_s: float) -> Any:
    """A client of the store at `uri`; a local one is made or migrated first, by one process at a time."""
    _set_quiet()
    with _store_lock(root, wait_s):
        _hush()
        from mlflow import MlflowClient

        return open_store(uri) if uri.startswith("sqlite:") else MlflowClient(uri)


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
