"""Checks that need more than params.yaml itself: axes, inputs, services, the model folder, suite and template names.

Guarantees: each refusal is one line with what is wrong, the value, and what to do; nothing is started or written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from guiderail.bench.protocols import PROTOCOLS
from guiderail.param_errors import nearest
from guiderail.params import ParamError, Params
from guiderail.pool.wire import TOKEN_ENV
from guiderail.workflow.spec import Job, Spec
from guiderail.yaml_file import read_yaml

USES_MODEL = {"sft", "prm", "rl", "merge", "evaluate"}
USES_TASKS = {"provision", "evaluate"}
USES_POOL = {"provision", "demos", "prm", "rl", "evaluate"}
USES_ENGINE = {"rl"}


def check_axes(params: Params, spec: Spec, job: Job) -> None:
    """Axis values must make sense (a recipe that exists, a whole seed) and be a point of the sweep: only its outputs
    are known to the stages below, to the report and to both engines."""
    recipe, seed = job.axes.get("recipe"), job.axes.get("seed")
    if recipe is not None and recipe not in params.recipes:
        raise ParamError(f"--recipe {recipe}: no such recipe in params.yaml. {nearest(recipe, params.recipes)}")
    if seed is not None and not seed.isdecimal():
        raise ParamError(f"--seed {seed}: must be a whole number, 0 or more.")
    if seed is not None and seed != str(int(seed)):
        raise ParamError(f"--seed {seed}: write it as {int(seed)}; it names folders.")
    for axis, known in spec.axes(job.stage).items():
        value = job.axes[axis]
        if value not in known:
            raise ParamError(
                f"--{axis} {value}: not in sweep.{axis} of params.yaml ({', '.join(known)}). {near(value, known)}"
                f"Add it there to make it part of the chain, or choose one of those."
            )


def near(value: str, known: Iterable[str]) -> str:
    """`nearest`, or nothing when no name is near."""
    text = nearest(value, known)
    return f"{text} " if text.startswith("Did you mean") else ""


def check_url(option: str, url: str, example: str) -> None:
    """An address must be one."""
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        right = right and not (parts.query or parts.fragment or parts.username or re.search(r"\s", url))
    except ValueError:  # a port that is no number, or beyond 65535; brackets that do not close
        right = False
    if not right:
        raise ParamError(f"{option} {url}: must be of the form http://host:port, e.g. {example}.")


def check_engine(params: Params, stage: str, url: str) -> None:
    """The inference server of a stage: its address must be one, or there must be an environment to start it from."""
    if stage not in USES_ENGINE:
        return
    if url and params.engine.kind != "vllm":
        raise ParamError(f"--engine-url {url}: engine.kind is {params.engine.kind!r}; set it to vllm.")
    if params.engine.kind != "vllm":
        return
    for option, given in (("--engine-url", url), ("engine.url =", params.engine.url)):
        if given:
            check_url(option, given, "http://127.0.0.1:8000")
            if params.trainer.kind == "ray" and params.trainer.rollout > 1:
                raise ParamError(
                    f"{option} {given}: trainer.rollout = {params.trainer.rollout} processes would each hand that one "
                    "server their own versions of the weights; set it to 1, or leave the address out."
                )
            return
    from guiderail.errors import InputError
    from guiderail.rollout.engines.vllm_server import find_build

    try:
        find_build(params.engine.python)
    except InputError as e:
        raise ParamError(f"engine.kind = 'vllm': {e}") from None


def check_trainer(params: Params, stage: str) -> None:
    """Ray must be installed where a stage is to train on it."""
    if stage in USES_ENGINE and params.trainer.kind == "ray" and find_spec("ray") is None:
        raise ParamError(
            "trainer.kind = 'ray': Ray is not installed in this environment. `pip install 'guiderail[ray]'` (the "
            "version is in requirements.lock), or set it to local."
        )


def check_pool_url(url: str | None) -> None:
    """An address given with --env-pool-url must be one, and its token must be there."""
    if url is None:
        return
    check_url("--env-pool-url", url, "http://127.0.0.1:18080")
    if not os.environ.get(TOKEN_ENV):
        raise ParamError(
            f"--env-pool-url {url}: {TOKEN_ENV} is not set. Put the pool's token into it: the one its server was "
            "started with."
        )


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
    """Model folder, device, suite and templates, as far as `stage` uses them."""
    if stage in USES_MODEL:
        check_model(params)
        check_device(params)
    if stage in USES_TASKS:
        check_tasks(params)


def check_device(params: Params) -> None:
    """model.device must be on this machine (a cluster's head node need not have it, so the engines do not ask)."""
    if params.model.device.startswith("cuda"):
        from guiderail.models.loading import resolve_device

        resolve_device(params.model.device)


def check_browser(params: Params) -> None:
    """env.browser, when it is given, must be a program."""
    path = params.env.browser
    if (path and not os.access(os.path.expanduser(path), os.X_OK)) or os.path.isdir(path):
        raise ParamError(
            f"params.yaml: env.browser = {path!r}: no program there. Give the path of a Chromium, or leave it empty: "
            "then one is looked for."
        )


def check_model(params: Params, option: str = "") -> None:
    """model.path must be a whole Hugging Face folder whose tokenizer can serve the prompt parameters.

    option: the command's option that gave the path (e.g. --model) in place of params.yaml; an adapter may stand there,
    which is checked with its parent when it is loaded.
    """
    from guiderail.models.fit import check_fit
    from guiderail.models.folder import CheckpointError, check_folder, is_adapter

    path = Path(params.model.path)
    where = f"{option} {path}" if option else f"params.yaml: model.path = {params.model.path!r}"
    if option and is_adapter(path):
        return
    if not (path / "config.json").is_file():
        what = "has no config.json" if path.is_dir() else "is no folder" if path.exists() else "does not exist"
        raise ParamError(
            f"{where}: {what}. Give the folder of a Qwen3-VL checkpoint{' or of an adapter' if option else ''}; the "
            "small one that ships is assets/tiny-vlm (`guiderail pretrain` makes it again)."
        )
    try:
        check_fit(check_folder(path), params.prompt)
    except CheckpointError as e:
        raise ParamError(f"{where}: {e}.") from None
    except ParamError as e:  # about the prompt, which is params.yaml's, and its tokenizer
        raise ParamError(f"{where if option else 'params.yaml'}: {e.message}") from None


def check_tasks(params: Params) -> None:
    """provision.suite, the template names and sweep.benchmark must exist."""
    from guiderail.tasks.suites import choose

    choose(params.provision)
    check_screen(params)
    for name in params.sweep.benchmark:
        check_benchmark(params, name, "sweep.benchmark = ")


def check_screen(params: Params) -> None:
    """The provider's screens must be of the suite's kind (browser pages or desktops), with the programs it needs."""
    from guiderail.tasks.suites import DESKTOPS

    suite, provider = params.provision.suite, params.env.provider
    if suite in DESKTOPS and provider == "local_browser":
        raise ParamError(
            f"env.provider = 'local_browser': suite {suite} needs desktops. Set it to local_desktop "
            "(this machine), or to a cloud whose image runs the in-VM server."
        )
    if suite not in DESKTOPS and provider == "local_desktop":
        raise ParamError(
            f"env.provider = 'local_desktop': suite {suite} needs browser pages. Set it to "
            "local_browser, or provision.suite to desktop."
        )
    if suite == "desktop_office" and provider == "local_desktop":
        from guiderail.pool.vm.packages import lacks_office

        if lacking := lacks_office():
            raise ParamError(
                f"provision.suite = 'desktop_office': LibreOffice is not on this machine ({', '.join(lacking)}): run "
                "`guiderail doctor --install office` (as root), or set it to desktop, which does without."
            )


def check_benchmark(params: Params, name: str, where: str = "--benchmark ") -> None:
    """A benchmark must exist, and have what it plays."""
    from guiderail.tasks.suites import names

    known = [*names(), *PROTOCOLS]
    if name not in known:
        raise ParamError(f"{where}{name!r}: no such benchmark. {nearest(name, known)}")
    if name == "sop" and not params.demos.recorded:
        raise ParamError("demos.recorded = 0: benchmark sop plays recorded episodes; set it to 1 or more.")
    if name.startswith("android_control"):
        check_android(params)


def check_android(params: Params) -> None:
    """The file of benchmarks android_control_* must be there, and its screenshots unless none are wanted."""
    a = params.evaluate.android_control
    if not Path(a.path).is_file():
        raise ParamError(f"evaluate.android_control.path = {a.path!r}: no such file. Give the JSONL of trajectories.")
    if bool(a.frames) == a.blank:
        what = "blank: true reads none" if a.frames else "give the folder of screenshots, or set blank: true"
        raise ParamError(f"evaluate.android_control.frames = {a.frames!r}: {what}.")


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
