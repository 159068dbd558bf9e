"""prm of params.yaml: how the small process reward model is made, measured and held to its measure."""

from __future__ import annotations

from pydantic import Field, model_validator

from guiderail.params_train import Tuning


class Prm(Tuning):
    """The process reward model: the policy's architecture, trained on steps that the state judge labels."""

    epochs: int = Field(4, ge=1, le=10_000)
    batch: int = Field(32, ge=1, le=100_000, description="Rows per optimiser step.")
    micro_batch: int = Field(32, ge=1, le=100_000, description="Rows per forward.")
    save_every: int = Field(100, ge=1, description="Optimiser steps between resumable checkpoints.")
    expert: int = Field(6, ge=0, le=100_000, description="Episodes of the expert, per train template.")
    noised: int = Field(24, ge=0, le=100_000, description="Of the expert with wrong steps among its own.")
    random: int = Field(6, ge=0, le=100_000, description="Of random clicks.")
    policy: int = Field(24, ge=0, le=100_000, description="Of the warm-up's checkpoint.")
    noise: float = Field(0.5, ge=0, le=1, description="noised: share of wrong steps.")
    temperature: float = Field(0.7, ge=0, le=100, description="policy: of its sampling.")
    point_grid: float = Field(0.025, gt=0, le=0.1, description="Points of scripted steps are rounded to this grid.")
    calibration: float = Field(
        1.0, gt=0, le=100, description="Episodes per held-out template for calibration, as a share of those above."
    )
    min_auroc: float = Field(
        0.7, ge=0.5, le=1, description="Recipes with this judge refuse to train below it (rl.step_wise.judge_gate)."
    )
    bins: int = Field(10, ge=2, le=100, description="Bins of the reliability curve.")
    bootstrap: int = Field(500, ge=100, le=1_000_000)
    confidence: float = Field(0.95, gt=0.5, lt=1)

    @model_validator(mode="after")
    def _some(self) -> Prm:
        if self.expert == self.noised == self.random == self.policy == 0:
            raise ValueError("there would be no step to learn from; raise expert, noised, random or policy")
        return self
