"""Checks that need more than params.yaml itself: axes, inputs, the model folder, suite and template names.

Guarantees: each refusal is one line with what is wrong, the value, and what to do; nothing is started or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guiderail.param_errors import nearest
from guiderail.params import ParamError, Params
from guiderail.workflow.spec import Job, Spec
from guiderail.yaml_file import read_yaml

USES_MODEL = {"sft", "rl", "merge", "evaluate"}
USES_TASKS = {"provision", "evaluate"}


def check_axes(params: Params, spec: Spec, job: Job) -> None:
    """Axis values must make sense: a recipe that exists, a whole seed, a benchmark that the sweep names."""
    recipe, seed, benchmark = (job.axes.get(k) for k in ("recipe", "seed", "benchmark"))
    if recipe is not None and recipe not in params.recipes:
        raise ParamError(f"--recipe {recipe}: no such recipe in params.yaml. {nearest(recipe, params.recipes)}")
    if seed is not None and not seed.isdecimal():
        raise ParamError(f"--seed {seed}: must be a whole number, 0 or more.")
    if benchmark is not None and benchmark not in spec.axes(job.stage)["benchmark"]:
        known = spec.axes(job.stage)["benchmark"]
        raise ParamError(f"--benchmark {benchmark}: not in sweep.benchmark of params.yaml. {nearest(benchmark, known)}")


def check_inputs(spec: Spec, job: Job, deps: list[str]) -> None:
    """Every declared input must be there; the line names the command that makes it."""
    for dep in deps:
        if Path(dep).exists():
            continue
        makers = [
            j
            for j in spec.jobs()
            for o in spec.job_outs(j)
            if dep == o or dep.startswith(o + "/") or o.startswith(dep + "/")
        ]
        if makers:
            maker = makers[0]
            command = " ".join([maker.stage, *(f"--{k} {v}" for k, v in maker.axes.items())])
            raise ParamError(
                f"{job.address}: input {dep} is missing. Make it with `guiderail {command}`, or run the whole chain: "
                "`snakemake --cores all` or `dvc repro`."
            )
        raise ParamError(
            f"{job.address}: input {dep} is missing. dvc.yaml lists it; run from the repository root of a full clone."
        )


def check_environment(params: Params, stage: str) -> None:
    """Model folder, suite and templates, as far as `stage` uses them."""
    if stage in USES_MODEL:
        check_model(params)
    if stage in USES_TASKS:
        check_tasks(params)


def check_model(params: Params) -> None:
    """model.path must be a Hugging Face folder."""
    path = Path(params.model.path)
    if not (path / "config.json").is_file():
        what = "has no config.json" if path.is_dir() else "does not exist"
        raise ParamError(
            f"params.yaml: model.path = {params.model.path!r}: {what}. Give the folder of a Qwen3-VL checkpoint; the "
            "small one that ships is assets/tiny-vlm (`guiderail pretrain` makes it again)."
        )


def check_tasks(params: Params) -> None:
    """provision.suite, the template names and sweep.benchmark must exist."""
    from guiderail.tasks.suites import SUITES, choose

    choose(params.provision)
    for name in params.sweep.benchmark:
        if name not in SUITES:
            raise ParamError(f"sweep.benchmark = {name!r}: no such benchmark. {nearest(name, SUITES)}")


def check_all(params: Params) -> None:
    """Everything that can be known before the chain starts."""
    check_model(params)
    check_tasks(params)


def check_config(config: Mapping[str, Any], path: str = "params.yaml") -> None:
    """Snakemake's config must be params.yaml: DVC, which runs the stages, reads nothing else."""
    if read_yaml(path) != config:
        raise ParamError(
            f"--config does not reach the stages, which read {path}: edit that, or use `guiderail preset NAME`."
        )
