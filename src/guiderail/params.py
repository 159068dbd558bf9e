"""Typed, strict parameters: params.yaml in, frozen pydantic models out.

Guarantees: an unknown or missing key, a wrong type or a value that cannot work is refused with one line per problem
that names the key, the value and the remedy. A file must hold every key: DVC tracks and interpolates single keys, so
one left to a default would be a change that re-runs nothing. Knows nothing of stages; each section is handed to the
part that consumes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from guiderail.param_errors import explain, nearest
from guiderail.param_section import Section
from guiderail.params_cloud import Cloud, check_cloud
from guiderail.params_desktop import Desktop
from guiderail.yaml_file import YamlError, read_yaml

NAME = re.compile(r"[a-z0-9_]+")
Beta = Annotated[float, Field(ge=0, lt=1)]


class ParamError(SystemExit):
    """Bad parameters. Its text is what the user reads; exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _once(values: list[Any]) -> None:
    """Raise ValueError when a value stands in a list twice."""
    for v in values:
        if values.count(v) > 1:
            raise ValueError(f"{v} stands in it {values.count(v)} times; name it once")


class Sweep(Section):
    """Matrix axes of the chain; every combination is a job."""

    recipe: list[str] = Field(["grpo"], min_length=1, description="Recipes to train, keys of `recipes`.")
    seed: list[int] = Field([0], min_length=1, description="Training seeds.")
    benchmark: list[str] = Field(["miniwob"], min_length=1, description="Benchmarks to evaluate on.")

    @field_validator("recipe", "seed", "benchmark")
    @classmethod
    def _axis(cls, values: list[Any]) -> list[Any]:
        _once(values)
        for v in values:
            if isinstance(v, int) and not 0 <= v < 2**31:
                raise ValueError("seeds must be 0 or more" if v < 0 else "seeds must be below 2147483648")
            if isinstance(v, str) and not NAME.fullmatch(v):
                raise ValueError(f"{v!r}: names on an axis may hold a-z, 0-9 and _ only (they become folder names)")
        return values


class Model(Section):
    """The starting checkpoint and how it is run."""

    path: str = Field("assets/tiny-vlm", description="Hugging Face folder of a Qwen3-VL checkpoint.")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N.")
    threads: int = Field(1, ge=1, le=1024, description="CPU threads per process.")
    train_vision: bool = Field(False, description="Train the vision tower too (turns the feature cache off).")


class Prompt(Section):
    """How a context is written; one builder for every stage."""

    codec: Literal[
        "agentcpm",
        "generic_v2",
        "guiderail",
        "openadapt",
        "openadapt_json",
        "os_atlas",
        "os_genesis",
        "pyautogui",
        "qwen25vl",
        "qwen3vl",
        "ui_s1",
        "ui_tars",
        "ui_tars15",
    ] = "guiderail"
    system: Literal["none", "short", "full"] = Field("short", description="System prompt: full lists all actions.")
    chunk_steps: int = Field(3, ge=1, le=64, description="Frames per append-only chunk before it is re-anchored.")
    thought: bool = Field(True, description='Ask for and train the "Action: ..." line before the call.')
    max_new_tokens: int = Field(28, ge=4, le=4096)


class Env(Section):
    """The environment pool."""

    provider: Literal["local_browser", "local_desktop", "docker", "aws", "volcengine", "aliyun"] = "local_browser"
    slots: int = Field(32, ge=1, le=1024, description="Pages in parallel.")
    browser: str = Field("", description="Path of a Chromium; empty = find one.")
    step_ms: int = Field(300, ge=0, le=60_000, description="Virtual milliseconds a page lives after an action.")
    call_timeout_s: float = Field(20.0, gt=0, le=86_400)
    lease_ttl_s: float = Field(60.0, gt=0, le=86_400)
    max_infra_retries: int = Field(
        3, ge=0, le=100, description="Re-samples of an episode after an infrastructure error."
    )
    cloud: Cloud = Cloud()
    desktop: Desktop = Desktop()


class Provision(Section):
    """Task instances and splits."""

    suite: str = "miniwob"
    templates: list[str] = Field(default_factory=list, description="Train templates; empty = the suite's default.")
    heldout: list[str] = Field(default_factory=list, description="Held-out templates; empty = the suite's default.")
    train_instances: int = Field(
        6, ge=1, le=100_000, description="Fixed train instances per template (evaluation split a)."
    )
    fresh_instances: int = Field(
        40, ge=1, le=100_000, description="Fresh instances per train template (evaluation split b)."
    )
    heldout_instances: int = Field(
        10, ge=1, le=100_000, description="Instances per held-out template (evaluation split c)."
    )
    task_seed: int = 0
    wordings: int = Field(1, ge=1, description="Instruction wording variants per instance (1 = the page's own).")
    selftest_instances: int = Field(
        1, ge=0, le=1000, description="Instances per template for expert/no-op/random checks."
    )


class Demos(Section):
    """Expert demonstrations."""

    per_template: int = Field(8, ge=1, le=100_000, description="Demonstrations per train template.")
    point_grid: float = Field(0.025, gt=0, le=0.1, description="Demonstrated points are rounded to this grid.")


class Lora(Section):
    """Low-rank adapters (Hu et al. 2021) on the language model's linear layers."""

    r: int = Field(16, ge=1, le=4096)
    alpha: int = Field(32, ge=1, le=100_000)
    dropout: float = Field(0.0, ge=0, lt=1)


class Optim(Section):
    """AdamW and its schedule."""

    lr: float = Field(3e-4, gt=0, le=10)
    weight_decay: float = Field(0.0, ge=0, le=1)
    warmup: float = Field(0.05, ge=0, le=1, description="Fraction of steps of linear warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    grad_clip: float = Field(1.0, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)


class Sft(Optim):
    """Supervised warm-up on demonstrations with the thought line."""

    lr: float = Field(3e-4, gt=0, le=10)
    epochs: int = Field(6, ge=1, le=10_000)
    batch: int = Field(16, ge=1, le=100_000, description="Rows per optimiser step.")
    micro_batch: int = Field(16, ge=1, le=100_000, description="Rows per forward.")
    mode: Literal["full", "lora"] = "full"
    lora: Lora = Lora()
    save_every: int = Field(50, ge=1, description="Optimiser steps between resumable checkpoints.")


class Rl(Optim):
    """Defaults of every RL recipe; `recipes.<name>` overrides single keys."""

    lr: float = Field(5e-4, gt=0, le=10)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    algorithm: Literal["grpo"] = "grpo"
    iterations: int = Field(40, ge=1, le=1_000_000)
    groups: int = Field(16, ge=1, le=100_000, description="Task instances per iteration.")
    group_size: int = Field(8, ge=2, le=10_000, description="Rollouts per task instance.")
    temperature: float = Field(0.7, gt=0, le=100)
    epochs: int = Field(3, ge=1, le=1000, description="Passes over the rows of one iteration.")
    batch: int = Field(32, ge=1, le=100_000, description="Rows per optimiser step (accumulated).")
    micro_batch: int = Field(16, ge=1, le=100_000, description="Rows per forward.")
    clip_low: float = Field(0.2, ge=0, le=1)
    clip_high: float = Field(0.28, ge=0, le=100)
    dual_clip: float = Field(
        0.0, ge=0, le=1000, description="Bound on the ratio of bad actions, above 1 (verl: 3); 0 = none."
    )
    ratio: Literal["token", "sequence"] = Field("token", description="sequence: one ratio per completion (GSPO).")
    importance_cap: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Truncated importance weights for rollouts of other weights, at least 1; 0 = none.",
    )
    kl_coef: float = Field(0.0, ge=0, le=100, description="Weight of the KL to the frozen starting weights.")
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_clamp: float = Field(0.0, ge=0, le=1000, description="Bound on that estimate per token (verl: 10); 0 = none.")
    entropy_coef: float = Field(0.0, ge=0, le=100)
    aggregation: Literal["token_mean", "row_mean", "trajectory_mean", "constant"] = "token_mean"
    aggregation_tokens: int = Field(
        128, ge=1, le=1_000_000, description="constant: tokens that divide the loss of each episode."
    )
    baseline: Literal["mean", "leave_one_out"] = Field("mean", description="leave_one_out: the siblings' mean (RLOO).")
    scale: Literal["std", "none"] = Field("std", description="Divide advantages by the group's standard deviation.")
    ddof: int = Field(1, ge=0, le=1, description="That deviation: 1 = sample (TRL, verl), 0 = population.")
    reward_failure: float = Field(0.0, ge=-100, lt=1, description="Reward of a failed episode (success = 1).")
    filter_rounds: int = Field(
        0,
        ge=0,
        le=1000,
        description="DAPO filter: rounds of `groups` an update may take to be full of groups with spread; 0 = off.",
    )
    filter_std: float = Field(
        0.0, ge=0, le=100, description="DAPO filter: population deviation of rewards a group must exceed."
    )
    logprob_tolerance: float = Field(
        1e-2, gt=0, le=100, description="Bound on |logp_train - logp_rollout| before an update."
    )
    mode: Literal["full", "lora"] = "lora"
    lora: Lora = Lora()
    save_every: int = Field(5, ge=1, description="Iterations between resumable checkpoints.")

    @field_validator("dual_clip")
    @classmethod
    def _above_one(cls, value: float) -> float:
        if 0 < value <= 1:
            raise ValueError("must be 0 (off) or above 1; it is a bound on the ratio")
        return value

    @field_validator("importance_cap")
    @classmethod
    def _at_least_one(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("must be 0 (off) or at least 1, or rollouts of the current weights would be cut too")
        return value


class Merge(Section):
    """How checkpoints become one Hugging Face folder."""

    method: Literal["lora", "linear"] = Field("lora", description="linear: interpolate start and end of the lineage.")
    weight: float = Field(1.0, ge=0, le=1, description="linear: share of the trained end (1 = the end itself).")
    tolerance: float = Field(
        1e-4,
        gt=0,
        le=10,
        description="Bound on probe logits, merged against adapter + base; model.dtype float16: 1e-2, bfloat16: 1e-1.",
    )


class Evaluate(Section):
    """Benchmark runs."""

    temperature: float = Field(0.0, ge=0, le=100)
    episodes: int = Field(
        0, ge=0, le=100_000, description="Episodes per split and template; 0 = all instances of the split."
    )
    checkpoints: list[Literal["base", "sft", "rl"]] = Field(["base", "sft", "rl"], min_length=1)
    bootstrap: int = Field(2000, ge=100, le=1_000_000)
    confidence: float = Field(0.95, gt=0.5, lt=1)
    film_strips: int = Field(6, ge=0, le=1000, description="Episodes drawn as film strips per checkpoint.")

    @field_validator("checkpoints")
    @classmethod
    def _distinct(cls, values: list[str]) -> list[str]:
        _once(values)
        return values


class Report(Section):
    """The report."""

    title: str = "guiderail report"


class Tracking(Section):
    """MLflow. `MLFLOW_TRACKING_URI` in the environment wins over the default store."""

    enabled: bool = True
    experiment: str = "guiderail"


def _default_recipes() -> dict[str, dict[str, Any]]:
    return {
        "grpo": {},
        "rloo": {"baseline": "leave_one_out", "scale": "none"},
        "dr_grpo": {"scale": "none", "aggregation": "constant"},
        "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "row_mean"},
        "dapo": {"filter_rounds": 4},
    }


class Params(Section):
    """All of params.yaml."""

    sweep: Sweep = Sweep()
    model: Model = Model()
    prompt: Prompt = Prompt()
    env: Env = Env()
    provision: Provision = Provision()
    demos: Demos = Demos()
    sft: Sft = Sft()
    rl: Rl = Rl()
    recipes: dict[str, dict[str, Any]] = Field(default_factory=_default_recipes)
    merge: Merge = Merge()
    evaluate: Evaluate = Evaluate()
    report: Report = Report()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _cloud_fits(self) -> Params:
        check_cloud(self.env.provider, self.env.cloud)
        return self

    @model_validator(mode="after")
    def _recipes_exist(self) -> Params:
        for recipe in self.sweep.recipe:
            if recipe not in self.recipes:
                raise ValueError(
                    f"sweep.recipe names {recipe!r}, which `recipes` lacks. {nearest(recipe, self.recipes)}"
                )
        for name, changes in self.recipes.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"recipes.{name}: a recipe's name may hold a-z, 0-9 and _ only")
            try:
                self.rl_for(name)
            except ValidationError as e:
                found = (explain(x, Rl, f"recipes.{name}") for x in e.errors() if x["loc"][0] in changes)
                raise ValueError("\n".join(found)) from None
            self._fits(name)
        return self

    def _fits(self, recipe: str) -> None:
        """Raise ValueError when sections contradict each other; without it a stage would find out hours later."""
        rl, own = self.rl_for(recipe), self.recipes[recipe]
        where = {k: f"recipes.{recipe}.{k}" if k in own else f"rl.{k}" for k in ("mode", "lora")}
        if rl.lora.dropout > 0:
            raise ValueError(
                f"{where['lora']}.dropout = {rl.lora.dropout}: must be 0, or what trains is not what sampled"
            )
        for key, mode in (("sft.mode", self.sft.mode), (where["mode"], rl.mode)):
            if self.model.train_vision and mode == "lora":
                raise ValueError(f"{key} = 'lora': an adapter holds no vision tower; model.train_vision needs full")
        one, two = self.sft.lora, rl.lora
        if self.sft.mode == rl.mode == "lora" and (one.r, one.alpha) != (two.r, two.alpha):
            raise ValueError(
                f"{where['lora']} = (r {two.r}, alpha {two.alpha}): must be sft.lora's (r {one.r}, alpha {one.alpha}), "
                "since the adapter of the warm-up is trained further"
            )

    def rl_for(self, recipe: str) -> Rl:
        """RL parameters of `recipe`: `rl` with the recipe's overrides. Raises ValidationError on an unknown key."""
        return Rl.model_validate_json(json.dumps({**self.rl.model_dump(), **self.recipes[recipe]}), strict=True)


def parse(raw: object, source: str = "params.yaml") -> Params:
    """Check a tree of plain values. Raises ParamError with one line per problem, each beginning with `source`."""
    try:
        text = json.dumps(raw, default=str)
    except (TypeError, ValueError, RecursionError) as e:  # a key that is no text, or a mapping that holds itself
        raise ParamError(f"{source}: not plain keys and values: {e}.") from None
    try:
        return Params.model_validate_json(text, strict=True)
    except ValidationError as e:
        lines = [line for x in e.errors() for line in explain(x, Params).splitlines()]
        raise ParamError("\n".join(f"{source}: {line}" for line in lines)) from None


def load(path: str | Path = "params.yaml") -> Params:
    """Read and check parameters; every key must be there. Raises ParamError with one line per problem."""
    try:
        raw = read_yaml(path)
    except YamlError as e:
        raise ParamError(str(e)) from None
    if raw is None or raw == {}:
        raise ParamError(f"{path}: empty. `guiderail preset default --force` writes all parameters into it.")
    if not isinstance(raw, dict):
        raise ParamError(f"{path}: must be a mapping of sections (sweep, model, rl, ...), not {type(raw).__name__}.")
    params = parse(raw, str(path))
    missing = _missing(raw, params.model_dump(mode="json"))
    if missing:
        named = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ParamError(
            f"{path}: missing: {named}. Every parameter must be in it (DVC tracks each). Add them, or let "
            "`guiderail preset NAME --force` write a whole file."
        )
    return params


def _missing(raw: Mapping[str, Any], full: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys of `full` that `raw` lacks; an absent section counts once."""
    found: list[str] = []
    for key, value in full.items():
        if key not in raw:
            found.append(f"{prefix}{key}")
        elif isinstance(value, dict) and f"{prefix}{key}" != "recipes":
            found += _missing(raw[key], value, f"{prefix}{key}.")
    return found
