"""sft and rl of params.yaml: optimiser, adapters, warm-up, reinforcement learning; which keys an algorithm reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from guiderail.param_section import Section
from guiderail.params_endpoint import Endpoint

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
