"""track: show stored outputs in MLflow that it does not have whole. The outputs are the record, MLflow the view.

Reads provenance.json and curves.jsonl below results/; writes no output. An output whose run in MLflow is finished and
has every point of every curve is left alone; another run is made for the rest, with the same name, tags, parameters,
inputs and description, and the tag `tracked: afterwards`. Figures, tables and traces are not made again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guiderail.curves import read_rows
from guiderail.errors import InputError
from guiderail.params import Tracking
from guiderail.stages.describe import datasets, description, tags_of
from guiderail.tracking import Tracker
from guiderail.tracking_mlflow import MlflowRun, tracking_uri
from guiderail.workflow.spec import Job

FILE = "provenance.json"


def outputs(root: Path) -> list[Path]:
    """Folders at or below `root` that hold a record."""
    return sorted(p.parent for p in root.rglob(FILE) if not any(part.startswith(".") for part in p.parts))


def run(folders: Sequence[Path], tracking: Tracking) -> int:
    """Send what is missing; gives the number of outputs that were sent. Raises InputError, TrackingError."""
    found = [o for folder in folders for o in outputs(folder)]
    if not found:
        raise InputError(f"{', '.join(map(str, folders))}: no {FILE} there or below; outputs of stages have one")
    sent = 0
    for out in found:
        record = json.loads((out / FILE).read_text(encoding="utf-8"))
        job = Job(record["stage"], record["axes"])
        rows = read_rows(out / "curves.jsonl")
        if empty(out, job) or whole(tracking, record, rows):
            continue
        send(out, job, record, rows, tracking)
        print(f"{job.address}: sent, {len(rows)} rows of curves", file=sys.stderr)
        sent += 1
    print(f"{len(found)} outputs, {sent} sent to {tracking_uri()}", file=sys.stderr)
    return sent


def empty(out: Path, job: Job) -> bool:
    """Whether there is nothing to show: the judge of a recipe that wants none."""
    return job.stage == "prm" and not json.loads((out / "judge" / "judge.json").read_text())["needed"]


def whole(tracking: Tracking, record: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether MLflow has a finished run of this attempt with as many points of every curve as the record has."""
    want: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step" and value is not None:
                want[key] = want.get(key, 0) + 1
    return MlflowRun.holds(tracking_uri(), Path.cwd(), tracking.experiment, record["digest"], want)


def send(out: Path, job: Job, record: dict[str, Any], rows: list[dict[str, Any]], tracking: Tracking) -> None:
    """One run of what the output says of itself."""
    tags = tags_of(job, record) | {"tracked": "afterwards"}
    options: dict[str, Any] = {"experiment": tracking.experiment, "run_name": job.address, "tags": tags}
    with Tracker(None, required=True, **options) as tracker:
        tracker.note(description(record, out, tracking.explorer))
        tracker.inputs(datasets(record))
        tracker.params({"params": record["params"]} | job.axes)
        for row in rows:
            tracker.log({k: float("nan") if v is None else v for k, v in row.items() if k != "step"}, row["step"])
        tracker.log_cost(record.get("cost", {}))
        tracker.artifact(out / FILE)
