"""trainer of params.yaml: what runs the learner of rl, this process or a Ray cluster, and how its GPUs are split."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from guiderail.param_section import Section


class Trainer(Section):
    """Who trains in stage rl. All but `kind` are knobs of the machine: changing them re-runs nothing.

    A run that was stopped goes on with another number of processes."""

    kind: Literal["local", "ray"] = Field("local", description="local: in the stage's process; ray: on a Ray cluster.")
    actor: int = Field(2, ge=0, le=4096, description="ray: processes that train, each with a shard of the model.")
    rollout: int = Field(1, ge=0, le=4096, description="ray: processes that sample, each with the whole model.")
    prm: int = Field(0, ge=0, le=4096, description="ray: processes of the process reward model, for recipes with one.")
    gpus: int = Field(0, ge=0, le=4096, description="ray: GPUs, one per process (actor + rollout + prm); 0 = CPUs.")
    address: str = Field(
        "", pattern=r"^\S*$", description="ray: address of a cluster (`ray start`); empty = start one on this machine."
    )
    restarts: int = Field(3, ge=0, le=1000, description="ray: how often lost processes are replaced before giving up.")
    object_store_mb: int = Field(256, ge=80, le=1_000_000, description="ray: shared memory of a cluster started here.")
    start_timeout_s: float = Field(600.0, gt=0, le=86_400, description="ray: how long cluster and processes may take.")

    @property
    def processes(self) -> int:
        """Of all roles."""
        return self.actor + self.rollout + self.prm

    @model_validator(mode="after")
    def _split(self) -> Trainer:
        if self.kind != "ray":
            return self
        for name in ("actor", "rollout"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 1 process is needed, or nothing trains")
        if self.gpus and self.processes != self.gpus:
            raise ValueError(
                f"actor + rollout + prm = {self.actor} + {self.rollout} + {self.prm} = {self.processes}, but gpus = "
                f"{self.gpus}: the parts must add up to all GPUs, so that none is idle or claimed twice"
            )
        return self


def check_judges(trainer: Trainer, recipes_with_prm: list[str]) -> None:
    """A process reward model needs a process, and a process needs one to run. Raises ValueError."""
    if trainer.kind != "ray":
        return
    if recipes_with_prm and trainer.prm < 1:
        raise ValueError(
            f"trainer.prm = {trainer.prm}: recipe {recipes_with_prm[0]!r} asks the process reward model, which needs "
            "at least 1"
        )
    if trainer.prm and not recipes_with_prm:
        raise ValueError(
            f"trainer.prm = {trainer.prm}: no recipe of sweep.recipe asks the process reward model; set it to 0 and "
            "give its share to actor or rollout"
        )
