"""Run one stage: check everything, say what the run is, execute it.

Guarantees: parameters, axes and inputs are checked before any work; the attempt folder is keyed by parameters, inputs
and axes, so the same command goes on after a kill and a changed one starts afresh; a stage reads only the parameters
that dvc.yaml lists for it. It does not decide whether a stage needs to run: that is DVC's and Snakemake's affair. How
it is run and published: see `execution`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guiderail import provenance
from guiderail.params import ParamError, Params, load
from guiderail.stages import checks
from guiderail.stages.execution import Attach, execute
from guiderail.stages.guard import guarded
from guiderail.stages.pretrain_options import read_options
from guiderail.workflow.spec import Job, Spec


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
    checks.check_model(params, "--model")
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
