"""Tracking: curves.jsonl is the record, MLflow the view. MLflow itself is met in `tracking_mlflow` and its neighbours.

Guarantees: `log` appends a line to curves.jsonl at once and never waits for MLflow; everything for MLflow is done by
one background thread in batches (`tracking_sender`), again where that may help, and delays the end of a stage by at
most `CLOSE_S` seconds. What did not get through is said at the end, with the command that sends it again, and fails the
stage only where `tracking.required` asks for that. One flat run per stage execution (a resumed attempt goes on in the
same run), grouped by tags. Default store: sqlite `mlflow.db` and `mlartifacts/` in the current directory;
`MLFLOW_TRACKING_URI` wins.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from guiderail.curves import Curves, flatten
from guiderail.errors import Explained
from guiderail.tracking_mlflow import DataSet, MlflowRun, tracking_uri
from guiderail.tracking_registry import CANDIDATE, Difference, Measured, Model, promote, register
from guiderail.tracking_sender import Job, Sender
from guiderail.tracking_traces import TracedEpisode, send

CLOSE_S = 60.0


class TrackingError(Explained, RuntimeError):
    """Something did not reach MLflow, and params.yaml says that this fails the stage (tracking.required)."""


class Tracker:
    """One MLflow run of one stage execution. All methods return at once.

    `curves`: file for `log` (None: the record is there already). `tags`: run tags. `state`: file that keeps the run id
    for a resumed attempt. `moved`: (from, to) directories, for artefacts that the runner renames before the thread came
    to upload them. `required`: `close` raises TrackingError when something was lost. `traces`: episodes shown as traces
    per call of `episodes`. `system`: log the machine's use. `upload`: send the weights of registered models along.
    """

    def __init__(
        self,
        curves: Path | None,
        *,
        enabled: bool = True,
        experiment: str = "guiderail",
        run_name: str = "",
        tags: Mapping[str, str] | None = None,
        state: Path | None = None,
        moved: tuple[Path, Path] | None = None,
        uri: str | None = None,
        required: bool = False,
        traces: int = 0,
        system: bool = False,
        upload: bool = False,
    ) -> None:
        self.curves = Curves(curves) if curves is not None else None
        self.run_name = run_name
        self._tags = dict(tags or {})
        self._moved, self._uri = moved, uri or tracking_uri()
        self._root = Path.cwd()
        self._after: list[tuple[str, Job]] = []
        self._warned = False
        self._required, self._traces, self._upload = required, traces, upload
        self._sender: Sender | None = None
        if enabled:

            def connect() -> MlflowRun:
                return MlflowRun.open(self._uri, self._root, experiment, run_name, self._tags, state, CLOSE_S)

            self._sender = Sender(connect, CLOSE_S, system, self._warn)

    # -- what a stage calls -------------------------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append a row to curves.jsonl and hand the points to MLflow (in batches)."""
        if self.curves is not None:
            self.curves.append(metrics, step)
        self._point(metrics, step)

    def rewind(self, step: int) -> None:
        """A stage that resumes at `step` calls this first: rows at or after it are dropped from curves.jsonl."""
        if self.curves is not None:
            self.curves.rewind(step)

    def params(self, params: Mapping[str, Any]) -> None:
        """Log parameters; nested mappings become dotted keys."""
        flat = flatten(params)
        self._put("parameters", lambda run: run.params(flat))

    def tags(self, tags: Mapping[str, Any]) -> None:
        """Set run tags."""
        self._put("tags", lambda run: run.tags(tags))

    def note(self, text: str) -> None:
        """The run's description, Markdown."""
        self._put("the description", lambda run: run.note(text))

    def inputs(self, datasets: Sequence[DataSet]) -> None:
        """What the run read."""
        self._put("dataset inputs", lambda run: run.inputs(datasets))

    def artifact(self, path: Path | str, directory: str | None = None) -> None:
        """Upload a file or a folder below `directory`."""
        src = Path(path)

        def job(run: MlflowRun) -> None:
            try:
                run.artifact(self._find(src), directory)
            except FileNotFoundError:  # published between the look and the upload: it is at its new place now
                run.artifact(self._find(src), directory)

        self._put(f"artefact {src.name}", job)

    def figure(self, path: Path | str, directory: str | None = "figures") -> None:
        """Upload a figure file."""
        self.artifact(path, directory)

    def image(self, name: str, png: bytes, step: int) -> None:
        """Log one PNG of the image series `name`."""
        self._put("images", lambda run: run.image(name, png, step))

    def table(self, name: str, rows: Mapping[str, Sequence[Any]]) -> None:
        """Log columns of equal length as a table that MLflow shows (and compares between runs)."""
        self._put(f"table {name}", lambda run: run.table(name, rows))

    def episodes(self, episodes: Sequence[Callable[[], TracedEpisode]]) -> None:
        """Show the first of them as traces, as many as params.yaml asks for; those beyond are not even made."""
        if self._sender is None:
            return
        for make in episodes[: self._traces]:
            try:
                episode = make()
            except Exception as e:  # a view that cannot be made is no reason to fail the stage
                self._sender.give_up("traces", e)
                continue
            self._put("traces", lambda run, e=episode: send(run, e))  # type: ignore[misc]

    def log_cost(self, cost: Mapping[str, float]) -> None:
        """Log seconds and memory as metrics of the run only: they are not part of the curves."""
        self._point({f"cost.{k}": v for k, v in cost.items()}, 0)

    def register_model(self, path: Path | str, name: str, digest: str) -> None:
        """Register the folder `path` (by reference) as a new version of `name` and as candidate, once published."""
        src = Path(path)

        def job(run: MlflowRun) -> None:
            model = self._model(name, self._root / self._find(src), digest)
            register(run, model, [model.alias, CANDIDATE] if model.alias else [CANDIDATE], self._upload)

        self._after.append(("the registered model", job))

    def promote(
        self, path: Path | str, name: str, digest: str, found: Measured, better: Callable[..., Difference]
    ) -> None:
        """Let the model in `path` try to become champion of `name`, once published; see `tracking_registry.promote`."""
        model = self._model(name, self._root / path, digest)

        def job(run: MlflowRun) -> None:
            print(f"{self.run_name}: {promote(run, model, found, better)}", file=sys.stderr, flush=True)

        self._after.append(("the champion gate", job))

    def close(self, status: str = "FINISHED") -> None:
        """Flush and end the run with MLflow status FINISHED, FAILED or KILLED; waits at most `CLOSE_S` seconds."""
        if self._sender is None:
            return
        if status == "FINISHED":
            for what, job in self._after:
                self._sender.put(what, job)
        self._sender.close(status)
        sender, self._sender = self._sender, None
        lost = ", ".join(f"{n} {what}" if n > 1 else what for what, n in sender.lost.items() if n)
        if lost:
            told = f"did not reach MLflow at {self._uri}: {lost} ({sender.reason}). `guiderail track` sends it again"
            print(f"{self.run_name or 'tracking'}: {told}", file=sys.stderr, flush=True)
        if (lost or sender.reason) and self._required and status == "FINISHED":
            raise TrackingError(
                f"{self.run_name or 'tracking'}: {lost or 'the run'} did not reach MLflow at {self._uri} "
                f"({sender.reason}), and tracking.required is true"
            )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close("FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _put(self, what: str, job: Job) -> None:
        if self._sender is not None:
            self._sender.put(what, job)

    def _point(self, metrics: Mapping[str, float], step: int) -> None:
        if self._sender is not None:
            now = int(time.time() * 1000)
            self._sender.points([(k, float(v), now, step) for k, v in metrics.items()])

    def _warn(self, message: str) -> None:
        if not self._warned:
            print(f"warning: tracking: no MLflow at {self._uri}: {message}", file=sys.stderr, flush=True)
        self._warned = True

    def _model(self, name: str, folder: Path, digest: str) -> Model:
        return Model(name, folder, digest, {k: v for k, v in self._tags.items() if k in ("recipe", "seed", "digest")})

    def _find(self, path: Path) -> Path:
        if not path.exists() and self._moved and path.is_relative_to(self._moved[0]):
            return self._moved[1] / path.relative_to(self._moved[0])
        return path
