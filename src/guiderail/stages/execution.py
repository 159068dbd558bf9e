"""Run a stage function in an attempt folder and publish what it made, as a whole.

Guarantees: the declared output is either absent or whole (written beside, fsynced, renamed); the attempt folder
`.work/<stage>/<digest>/` is kept when the run fails, so the same command goes on there, and removed when it is done;
one process runs an output at a time; Ctrl-C ends with status 130, SIGTERM with 143. Checks nothing: see `runner`.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from guiderail.params import Params
from guiderail.stages import attempts, describe
from guiderail.stages.context import StageContext
from guiderail.stages.locks import only_one, output_lock
from guiderail.stages.meter import Meter
from guiderail.stages.paths import WORK
from guiderail.tracking import Tracker
from guiderail.workflow.spec import Job

StageFunction = Callable[..., None]


@dataclass(frozen=True)
class Attach:
    """Services that run already and are to be used instead of starting own ones. `yes`: costs are accepted."""

    env_pool_url: str | None = None
    yes: bool = False
    engine_url: str = ""


def stage_function(name: str) -> StageFunction:
    """`run` of guiderail.stages.<name>; GUIDERAIL_STAGES_MODULE names a module of stand-ins (tests)."""
    stand_in = os.environ.get("GUIDERAIL_STAGES_MODULE")
    with _interrupts_kept():
        if stand_in:
            return getattr(importlib.import_module(stand_in), name)  # type: ignore[no-any-return]
        return importlib.import_module(f"guiderail.stages.{name}").run  # type: ignore[no-any-return]


def execute(
    job: Job, params: Params, record: dict[str, Any], final: Path, attach: Attach, options: dict[str, str] | None = None
) -> None:
    """Run the stage function in its attempt folder and publish its output at `final`."""
    digest = record["digest"]
    work = WORK / job.stage / digest[:24]
    busy = f"{job.address} is already running in another process"
    with (
        only_one(output_lock(WORK, final), f"{busy}, which writes {final}; wait for it or stop it"),
        only_one(work / "lock", f"{busy} ({work}); wait for it or stop it"),
        _terminated_as(143),
    ):
        tags = describe.tags_of(job, record)
        tags["engine"] = os.environ.get("GUIDERAIL_ENGINE") or ("dvc" if "DVC_STAGE" in os.environ else "cli")
        out = final.parent / f".{final.name}.partial"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        (work / "record.json").write_text(json.dumps(record))  # says whose attempt this is to those who look on
        attempts.begin(work, job.address)
        meter = Meter(work / "cost.json")
        tracker = Tracker(
            work / "curves.jsonl",
            enabled=params.tracking.enabled and describe.shown(job, params),
            experiment=params.tracking.experiment,
            run_name=job.address,
            tags=tags,
            state=work / "mlflow.json",
            moved=(out, final),
            required=params.tracking.required,
            traces=params.tracking.traces,
            system=params.tracking.system_metrics,
            upload=params.tracking.upload_model,
        )
        try:
            with tracker, meter:
                tracker.note(describe.description(record, final, params.tracking.explorer))
                tracker.inputs(describe.datasets(record))
                tracker.params({"params": record["params"]} | job.axes)
                ctx = StageContext(
                    params,
                    job.stage,
                    job.axes,
                    out,
                    final,
                    work,
                    tracker,
                    attach.env_pool_url,
                    options or {},
                    yes=attach.yes,
                    engine_url=attach.engine_url,
                )
                stage_function(job.stage)(ctx, **job.axes)
                cost = meter.stop() | {f"remembered_{k}": v for k, v in ctx.remembered.items()}
                tracker.log_cost(cost)
                curves = work / "curves.jsonl"
                if curves.exists() and not (out / "curves.jsonl").exists():
                    shutil.copyfile(curves, out / "curves.jsonl")
                text = json.dumps(record | {"cost": cost}, indent=1, sort_keys=True) + "\n"
                (out / "provenance.json").write_text(text)
                tracker.artifact(out / "provenance.json")
                publish(out, final)
        except BaseException as e:
            shutil.rmtree(out, ignore_errors=True)
            attempts.fail(work, e)
            raise
        _forget(work)
    peak = cost.get("peak_pss_bytes", cost["peak_rss_bytes"]) / 2**20
    print(f"{job.address}: done in {cost['seconds']:.0f} s, peak {peak:.0f} MiB -> {final}", file=sys.stderr)


def publish(out: Path, final: Path) -> None:
    """Make `out` durable and rename it to `final`, replacing what is there. Not interruptible."""
    for f in [*out.rglob("*"), out]:
        _fsync(f)
    old = final.parent / f".{final.name}.old"
    with _uninterrupted():
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            os.rename(final, old)
        os.rename(out, final)
        _fsync(final.parent)
        shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _forget(work: Path) -> None:
    """Remove a finished attempt, and the folders above it that it leaves empty."""
    shutil.rmtree(work, ignore_errors=True)
    with suppress(OSError):  # not empty, or removed just now by another job of the stage that ended too
        work.parent.rmdir()
        work.parent.parent.rmdir()


@contextmanager
def _terminated_as(status: int) -> Iterator[None]:
    """SIGTERM unwinds the stack (services stop, files close) and exits with `status`."""

    def stop(_: int, __: FrameType | None) -> None:
        raise SystemExit(status)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Ctrl-C in the block is a KeyboardInterrupt at its end at the latest: some packages swallow it while they are
    imported, or make an ImportError of it."""
    before, pressed = signal.getsignal(signal.SIGINT), False

    def note(_: int, __: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt  # in place of whatever became of it


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM for a few renames; they arrive afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
