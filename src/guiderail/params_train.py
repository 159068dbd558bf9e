"""sft and rl of params.yaml: optimiser, adapters, warm-up, reinforcement learning; which keys an algorithm reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from guiderail.param_section import Section
from guiderail.params_collection import Collection
from guiderail.params_endpoint import Endpoint
from guiderail.params_judge import Voting

ALGORITHMS = ("grpo", "step_wise", "semi_online")
OWN = "an algorithm of plugins.algorithms"
Layout = Literal["padded", "packed"]
LAYOUT = "packed: the rows of a forward without padding, equal beginnings computed once; the same to rounding."
Beta = Annotated[float, Field(ge=0, lt=1)]


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


class Tuning(Optim):
    """Supervised training on rows with known answers."""

    epochs: int = Field(6, ge=1, le=10_000)
    batch: int = Field(16, ge=1, le=100_000, description="Rows per optimiser step.")
    micro_batch: int = Field(16, ge=1, le=100_000, description="Rows per forward.")
    layout: Layout = Field("padded", description=LAYOUT)
    mode: Literal["full", "lora"] = "full"
    lora: Lora = Lora()
    save_every: int = Field(50, ge=1, description="Optimiser steps between resumable checkpoints.")


class Cot(Section):
    """Who writes the thought of each demonstrated step."""

    source: Literal["expert", "teacher", "none"] = Field(
        "expert", description="expert: as recorded; teacher: a model asked per step; none: rows without thoughts."
    )
    on_missing: Literal["error", "drop"] = Field(
        "error", description="teacher: a step without a usable thought ends the stage, or drops its demonstration."
    )
    tries: int = Field(2, ge=1, le=20, description="teacher: answers asked for until one is usable.")
    temperature: float = Field(0.0, ge=0, le=100)
    max_tokens: int = Field(200, ge=1, le=100_000, description="teacher: longest answer.")
    endpoint: Endpoint = Endpoint()


class Sft(Tuning):
    """Supervised warm-up on demonstrations with the thought line."""

    cot: Cot = Cot()


class StepWise(Section):
    """algorithm step_wise: advantages of single steps from a judge's votes and the outcome."""

    judge: Literal["progress", "prm", "endpoint"] = Field(
        "progress",
        description="Who votes. progress: the scripted expert's plan got shorter; prm: the model of stage prm.",
    )
    voting: Voting = Voting()
    judge_gate: bool = Field(True, description="prm: refuse to train with a judge below prm.min_auroc.")
    coef: float = Field(1.0, ge=0, le=100, description="Weight of a step's mean vote beside the episode's reward.")
    credit: Literal["bucket", "return_to_go", "outcome_anchored", "reference"] = Field(
        "outcome_anchored",
        description="Baseline and credit; outcome_anchored: the siblings' mean reward a step; return_to_go: later votes "
        "count too; bucket: gui-rl's (group, step); reference: gui-rl to the bit.",
    )
    gamma: float = Field(1.0, ge=0, le=1, description="return_to_go: discount of later votes and the outcome.")

    @model_validator(mode="after")
    def _read(self) -> StepWise:
        if self.credit != "return_to_go" and self.gamma != 1.0:
            raise ValueError(f"credit {self.credit} does not read gamma = {self.gamma}; leave it at 1.0")
        if self.credit == "reference" and self.coef != 1.0:
            raise ValueError(f"credit reference does not read coef = {self.coef} (gui-rl has none); leave it at 1.0")
        return self


class SemiOnline(Section):
    """algorithm semi_online: rollouts along recorded demonstrations, which patch the history after a miss (UI-S1)."""

    patch: Literal["thought_free", "on_policy", "off_policy"] = Field(
        "thought_free",
        description="Thought of the expert's turn that replaces a missed one: none, the policy's, its own.",
    )
    patch_threshold: int = Field(1, ge=-1, le=1000, description="Misses a rollout may have patched; -1 = any number.")
    reward: Literal["code", "paper"] = Field("code", description="Reward of a step: as UI-S1's code or its paper.")
    segment: Literal["code", "paper"] = Field(
        "code", description="Returns end before (code) or with (paper) the first missed step."
    )
    gamma: float = Field(0.5, ge=0, le=1, description="Discount inside a run of matches.")
    statistic: Literal["sum", "first_return", "last_return", "reference_row"] = Field(
        "sum", description="What of a rollout the group compares; reference_row: UI-S1's code, one row at a time."
    )
    norm: Literal["mean_norm", "mean_std_norm"] = "mean_std_norm"
    episode_weight: float = Field(1.0, ge=0, le=100)
    step_weight: float = Field(1.0, ge=0, le=100)

    @model_validator(mode="after")
    def _weighted(self) -> SemiOnline:
        if self.episode_weight == self.step_weight == 0.0:
            raise ValueError("episode_weight and step_weight are both 0: every advantage would be 0; raise one")
        return self


READS: dict[str, frozenset[str]] = {  # keys that not every algorithm reads -> the algorithms that do
    "baseline": frozenset({"grpo"}),
    "scale": frozenset({"grpo"}),
    "ddof": frozenset({"grpo", "step_wise"}),
    "reward_failure": frozenset({"grpo", "step_wise", OWN}),
    "options": frozenset({OWN}),
    "step_wise": frozenset({"step_wise"}),
    "semi_online": frozenset({"semi_online"}),
}


def check_read(recipe: str, own: Mapping[str, Any], rl: Rl) -> None:
    """A recipe must not set what its algorithm does not read. Raises ValueError naming the key."""
    kind = rl.algorithm if rl.algorithm in ALGORITHMS else OWN
    for key in own:
        if kind not in READS.get(key, {kind}):
            raise ValueError(
                f"recipes.{recipe}.{key}: algorithm {rl.algorithm} does not read it (only "
                f"{' and '.join(sorted(READS[key] - {OWN}) or [OWN])}): leave it out"
            )
    if "ddof" in own and rl.algorithm == "step_wise" and rl.step_wise.credit in ("outcome_anchored", "reference"):
        raise ValueError(f"recipes.{recipe}.ddof: credit {rl.step_wise.credit} does not read it: leave it out")
    if rl.algorithm == "step_wise" and rl.step_wise.credit == "reference" and rl.reward_failure != -1.0:
        raise ValueError(
            f"recipes.{recipe}.reward_failure = {rl.reward_failure}: credit reference compares +1 with -1: set it to -1"
        )


def recipe_phases(own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a recipe overrides, phase by phase: `phases` lists them, the recipe's other keys hold for all of them.

    Raises ValueError when `phases` is no list of at least two mappings, or a phase has phases.
    """
    shared = {k: v for k, v in own.items() if k != "phases"}
    if "phases" not in own:
        return [shared]
    phases = own["phases"]
    if not isinstance(phases, list) or len(phases) < 2 or not all(isinstance(p, dict) for p in phases):
        raise ValueError("must be a list of two or more mappings of keys of rl, in the order they are trained")
    if any("phases" in p for p in phases):
        raise ValueError("a phase cannot have phases")
    return [overridden(shared, p) for p in phases]


def overridden(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over`, key by key also inside sections."""
    both = (k for k in over if isinstance(over[k], dict) and isinstance(base.get(k), dict))
    return {**base, **over, **{k: overridden(base[k], over[k]) for k in both}}


class Rl(Optim):
    """Defaults of every RL recipe; `recipes.<name>` overrides single keys."""

    lr: float = Field(5e-4, gt=0, le=10)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    algorithm: str = Field(
        "grpo",
        description="grpo, step_wise, semi_online, or a file listed in plugins.algorithms.",
        json_schema_extra={"anyOf": [{"enum": list(ALGORITHMS)}, {"pattern": "^[a-z][a-z0-9_]*$"}]},
    )
    options: dict[str, float] = Field(default_factory=dict, description="Of an algorithm of plugins.algorithms.")
    iterations: int = Field(40, ge=1, le=1_000_000)
    groups: int = Field(16, ge=1, le=100_000, description="Task instances per iteration.")
    group_size: int = Field(8, ge=2, le=10_000, description="Rollouts per task instance.")
    temperature: float = Field(0.7, gt=0, le=100)
    epochs: int = Field(3, ge=1, le=1000, description="Passes over the rows of one iteration.")
    batch: int = Field(32, ge=1, le=100_000, description="Rows per optimiser step (accumulated).")
    micro_batch: int = Field(16, ge=1, le=100_000, description="Rows per forward.")
    layout: Layout = Field("padded", description=LAYOUT)
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
    step_wise: StepWise = StepWise()
    semi_online: SemiOnline = SemiOnline()
    collection: Collection = Collection()

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
