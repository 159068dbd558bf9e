"""Tracking: curves.jsonl is the record, MLflow the view. MLflow itself is met in `tracking_mlflow` only.

Guarantees: `log` appends a line to curves.jsonl at once and never waits for MLflow; everything for MLflow is done by
one background thread in batches; whatever goes wrong there is printed once as a warning and never fails or delays the
stage by more than `CLOSE_S` seconds. One flat run per stage execution (a resumed attempt goes on in the same run),
grouped by tags. Default store: sqlite `mlflow.db` and `mlartifacts/` in the current directory; `MLFLOW_TRACKING_URI`
wins.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from guiderail.curves import Curves, flatten
from guiderail.tracking_mlflow import MlflowRun, tracking_uri

Job = Callable[[MlflowRun], None]

CLOSE_S = 60.0
FLUSH_S = 3.0


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
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._after: list[Job] = []
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
        self._put(lambda run: run.params(flat))

    def tags(self, tags: Mapping[str, Any]) -> None:
        """Set run tags."""
        self._put(lambda run: run.tags(tags))

    def artifact(self, path: Path | str, directory: str | None = None) -> None:
        """Upload a file or a folder below `directory`."""
        src = Path(path)

        def job(run: MlflowRun) -> None:
            try:
                run.artifact(self._find(src), directory)
            except FileNotFoundError:  # published between the look and the upload: it is at its new place now
                run.artifact(self._find(src), directory)

        self._put(job)

    def figure(self, path: Path | str, directory: str | None = "figures") -> None:
        """Upload a figure file."""
        self.artifact(path, directory)

    def image(self, name: str, png: bytes, step: int) -> None:
        """Log one PNG of the image series `name`."""
        self._put(lambda run: run.image(name, png, step))

    def log_cost(self, cost: Mapping[str, float]) -> None:
        """Log seconds and memory as metrics of the run only: they are not part of the curves."""
        now = int(time.time() * 1000)
        with self._lock:
            self._points += [(f"cost.{k}", float(v), now, 0) for k, v in cost.items()]

    def register_model(self, path: Path | str, name: str, alias: str) -> None:
        """Register the folder `path` (by reference, no copy) as a new version of `name`, once published."""
        src = Path(path)

        def job(run: MlflowRun) -> None:
            run.register_model((self._root / self._find(src)).resolve().as_uri(), name, alias, self._tags)

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

    def _put(self, job: Job) -> None:
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
            run = MlflowRun.open(
                self._uri, self._root, self.experiment, self.run_name, self._tags, self._state, CLOSE_S
            )
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
                self._flush(run)
                if job is not None:
                    job(run)
                if stop:
                    run.end(self._status)
            except Exception as e:
                self._warn(_short(e))

    def _flush(self, run: MlflowRun) -> None:
        with self._lock:
            points, self._points = self._points, []
        run.metrics(points)


def _short(e: BaseException) -> str:
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
