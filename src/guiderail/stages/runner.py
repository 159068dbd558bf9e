"""Run one stage: check everything, work in an attempt folder, publish atomically.

Guarantees: parameters, axes and inputs are checked before any work; the declared output is either absent or whole
(written beside, fsynced, renamed); the attempt folder `.work/<stage>/<digest>/` is keyed by parameters, inputs and
axes, so the same command goes on after a kill and a changed one starts afresh; Ctrl-C ends with status 130, SIGTERM
with 143; a stage reads only the parameters that dvc.yaml lists for it. It does not decide whether a stage needs to
run: that is DVC's and Snakemake's affair.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import PrivateAttr

from guiderail import provenance
from guiderail.params import ParamError, Params, load
from guiderail.stages import attempts, checks, describe
from guiderail.stages.context import StageContext
from guiderail.stages.locks import only_one, output_lock
from guiderail.stages.meter import Meter
from guiderail.stages.paths import WORK
from guiderail.stages.pretrain_options import read_options
from guiderail.tracking import Tracker
from guiderail.workflow.spec import Job, Spec

StageFunction = Callable[..., None]


@dataclass(frozen=True)
class Attach:
    """Services that run already and are to be used instead of starting own ones. `yes`: costs are accepted."""

    env_pool_url: str | None = None
    yes: bool = False
    engine_url: str = ""


class _Guarded(Params):
    """Params that refuse to be read outside what dvc.yaml lists: a change of the rest would re-run nothing."""

    _stage: str = PrivateAttr("")
    _sections: frozenset[str] = PrivateAttr(frozenset(Params.model_fields))

    def __getattribute__(self, name: str) -> Any:
        if name in Params.model_fields and name not in self._sections:
            raise ParamError(
                f"stage {self._stage} reads params.{name}, which dvc.yaml does not list under its `params:`; "
                "add it there, or changing it would re-run nothing"
            )
        return super().__getattribute__(name)


def guarded(params: Params, stage: str, keys: list[str]) -> Params:
    """`params` restricted to the sections of `keys` (plus env, model and tracking, whose machine knobs are free to
    read).
    """
    view = _Guarded.model_construct(**dict(params))
    view._stage = stage
    view._sections = frozenset(k.split(".")[0] for k in keys) | {"tracking", "env", "model"}
    return view


def stage_function(name: str) -> StageFunction:
    """`run` of guiderail.stages.<name>; GUIDERAIL_STAGES_MODULE names a module of stand-ins (tests)."""
    stand_in = os.environ.get("GUIDERAIL_STAGES_MODULE")
    with _interrupts_kept():
        if stand_in:
            return getattr(importlib.import_module(stand_in), name)  # type: ignore[no-any-return]
        return importlib.import_module(f"guiderail.stages.{name}").run  # type: ignore[no-any-return]


def used_params(params: Params, keys: list[str]) -> dict[str, Any]:
    """The values of dotted `keys`, defaults filled in."""
    tree = params.model_dump(mode="json")
    found = {}
    for key in keys:
        value: Any = tree
        for part in key.split("."):
            value = value[part]
        found[key] = value
    return found


def run_stage(
    name: str, axes: Mapping[str, str], params_path: str | Path = "params.yaml", attach: Attach | None = None
) -> None:
    """Run stage `name` at the point `axes`. Raises ParamError before any work when something cannot be right."""
    params = load(params_path)
    spec = Spec(params.model_dump(mode="json"))
    job = Job(name, {k: str(axes[k]) for k in spec.axes(name)})
    checks.check_axes(params, spec, job)
    attach = attach or Attach()
    checks.check_pool_url(attach.env_pool_url)
    checks.check_engine(params, name, attach.engine_url)
    checks.check_trainer(params, name)
    checks.check_environment(params, name)
    if name in checks.USES_POOL and attach.env_pool_url is None:
        checks.check_browser(params)
    keys = spec.param_keys(name, job.axes)
    deps = [d.format(**job.axes) for d in spec.raw_deps(name)]
    checks.check_inputs(spec, job, deps)
    (final,) = (Path(o) for o in spec.job_outs(job))
    record = _record(job, used_params(params, keys), deps)
    if name in checks.USES_MODEL:
        record["base_manifest_sha256"] = provenance.manifest_digest(Path(params.model.path))
    guard = guarded(params, job.address, keys)
    execute(job, guard, record, final, attach)


def run_pretrain(final: Path, params_path: str | Path, options: dict[str, str]) -> None:
    """Make the base model: the one stage outside the DAG, since its output ships with the repository."""
    params = load(params_path)
    read_options(options)
    own = ["stages/pretrain.py", "stages/pretrain_options.py", "checkpoints", "models", "train"]
    deps = [f"src/guiderail/{name}" for name in own]
    record = _record(Job("pretrain", {}), {"model": params.model.model_dump(mode="json"), **options}, deps)
    execute(Job("pretrain", {}), params, record, final, Attach(), options)


def run_evaluation(
    model: Path, benchmark: str, final: Path, params_path: str | Path, attach: Attach | None = None
) -> None:
    """Evaluate any checkpoint, outside the DAG. Raises ParamError before any work when something cannot be right."""
    params, attach = load(params_path), attach or Attach()
    spec = Spec(params.model_dump(mode="json"))
    params = params.model_copy(update={"model": params.model.model_copy(update={"path": model.as_posix()})})
    if not (model / "adapter_config.json").is_file():  # an adapter is checked with its parent when it is loaded
        checks.check_model(params)
    checks.check_device(params)
    checks.check_benchmark(params, benchmark)
    checks.check_pool_url(attach.env_pool_url)
    job = Job("evaluate_model", {"model": model.as_posix(), "benchmark": benchmark})
    code = [d for d in spec.raw_deps("evaluate") if d.startswith(("src/", "plugins/"))]
    data = ["results/provision/tasks.json", *(["results/demos/recorded"] if benchmark == "sop" else [])]
    for needed in data:
        if not Path(needed).exists():
            stage = needed.split("/")[1]
            raise ParamError(f"evaluate --model: {needed} is missing. Make it with `guiderail {stage}`.")
    used = {k: getattr(params, k).model_dump(mode="json") for k in ("evaluate", "prompt", "model", "env")}
    record = _record(job, used, [*code, "src/guiderail/stages/evaluate_model.py", *data, model.as_posix()])
    record["command"] = ["guiderail", "evaluate", "--model", model.as_posix(), "--benchmark", benchmark]
    execute(job, params, record, final, attach)


def run_merge(
    told: dict[str, Any], final: Path, params_path: str | Path = "params.yaml", attach: Attach | None = None
) -> None:
    """`merge models`, outside the DAG; `told`: its options. Raises ParamError before any work."""
    params, attach = load(params_path), attach or Attach()
    if final.exists():
        raise ParamError(f"--out {final}: exists; a published folder is not overwritten. Name another.")
    for folder in [*told["models"], *([told["base"]] if told["base"] else [])]:
        if not Path(folder).is_dir():
            raise ParamError(f"{folder}: no such checkpoint folder.")
    checks.check_device(params)
    needs: list[str] = []
    if told["gate"] != "off":
        told["benchmark"] = told["benchmark"] or params.sweep.benchmark[0]
        checks.check_benchmark(params, told["benchmark"])
        checks.check_pool_url(attach.env_pool_url)
        needs = ["results/provision/tasks.json", *(["results/demos/recorded"] if told["benchmark"] == "sop" else [])]
    for needed in needs:
        if not Path(needed).exists():
            stage = needed.split("/")[1]
            raise ParamError(
                f"--gate {told['gate']}: {needed} is missing. Make it with `guiderail {stage}`, or pass --gate off."
            )
    job = Job("merge_models", {"method": told["method"], "out": final.as_posix()})
    used = {k: getattr(params, k).model_dump(mode="json") for k in ("evaluate", "prompt", "model", "env")}
    code = [d for d in Spec(params.model_dump(mode="json")).raw_deps("evaluate") if d.startswith("src/")]
    record = _record(job, used | {"merge": told}, [*code, *needs, *told["models"]])
    record["command"] = ["guiderail", "merge", "models", json.dumps(told, sort_keys=True)]
    execute(job, params, record, final, attach, {"merge": json.dumps(told)})


def identity(job: Job, used: dict[str, Any], deps: list[str]) -> dict[str, Any]:
    """Stage, axes, parameters and inputs by content, and the `digest` that names them. Raises FileNotFoundError."""
    found = {"stage": job.stage, "axes": job.axes, "params": used, "inputs": provenance.input_digests(deps)}
    return found | {"digest": hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()}


def digest_now(job: Job, params_path: str | Path = "params.yaml") -> str:
    """The digest that a run of `job` would have now. Raises ParamError, FileNotFoundError."""
    params = load(params_path)
    spec = Spec(params.model_dump(mode="json"))
    deps = [d.format(**job.axes) for d in spec.raw_deps(job.stage)]
    return str(identity(job, used_params(params, spec.param_keys(job.stage, job.axes)), deps)["digest"])


def _record(job: Job, used: dict[str, Any], deps: list[str]) -> dict[str, Any]:
    """Provenance of a run about to start."""
    return identity(job, used, deps) | {
        "command": ["guiderail", job.stage, *(part for k, v in job.axes.items() for part in (f"--{k}", v))],
        "git": provenance.git_state(),
        "dvc_lock_sha256": provenance.lock_digest(),
        "packages": provenance.versions(),
    }


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
            enabled=params.tracking.enabled,
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
                cost = meter.stop()
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
    """Remove a finished attempt."""
    shutil.rmtree(work, ignore_errors=True)
    for parent in (work.parent, work.parent.parent):
        if parent.exists() and not any(parent.iterdir()):
            parent.rmdir()


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
