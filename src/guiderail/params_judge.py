"""judge and prm of params.yaml: who votes on steps, and how the small process reward model is made and tested."""

from __future__ import annotations

from pydantic import Field

from guiderail.param_section import Section
from guiderail.params_endpoint import Endpoint
from guiderail.params_train import Tuning


class Judge(Section):
    """Who votes on the steps of step_wise recipes (`rl.judge` chooses the kind)."""

    votes: int = Field(1, ge=1, le=64, description="Votes a step (m).")
    temperature: float = Field(1.0, gt=0, le=100, description="Of the judge's sampling.")
    max_new_tokens: int = Field(1024, ge=8, le=100_000, description="Longest answer of an endpoint.")
    batch: int = Field(64, ge=1, le=4096, description="Steps that the trained judge reads at once.")
    endpoint: Endpoint = Endpoint()


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
        0.7, ge=0.5, le=1, description="Recipes with this judge refuse to train below it (rl.judge_gate)."
    )
    bins: int = Field(10, ge=2, le=100, description="Bins of the reliability curve.")
    bootstrap: int = Field(500, ge=100, le=1_000_000)
    confidence: float = Field(0.95, gt=0.5, lt=1)
