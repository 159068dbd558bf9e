"""rl.collection of params.yaml: when rollouts are made, between the updates or all the while."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from guiderail.param_section import Section


class Collection(Section):
    """Whether training waits for its rollouts, or workers of their own go on making them (docs/async.md)."""

    mode: Literal["sync", "async"] = "sync"
    max_staleness: int = Field(
        1, ge=0, le=1000, description="async: updates that the weights of a rollout may be behind those it trains."
    )
    workers: int = Field(1, ge=1, le=256, description="async: rounds of rollouts at a time; they share env.slots.")
    restarts: int = Field(2, ge=0, le=1000, description="async: workers that may die before the stage gives up.")
    replay: str = Field("", description="async: schedule.jsonl of an earlier run to follow; empty = as it comes.")


def check_collection(where: str, c: Collection, importance_cap: float, engine: str, slots: int) -> None:
    """Raise ValueError when a collection cannot be, naming the key below `where`. slots: env.slots."""
    if c.mode == "sync":
        if c.replay:
            raise ValueError(
                f"{where}.collection.replay = {c.replay!r}: only mode async follows a schedule; set collection.mode to "
                "async, or leave replay empty"
            )
        return
    if c.workers > slots:
        raise ValueError(
            f"{where}.collection.workers = {c.workers}: they share env.slots = {slots} screens, at least one each; "
            "lower workers or raise env.slots"
        )
    if c.max_staleness and not importance_cap:
        raise ValueError(
            f"{where}.collection.mode = 'async': trains on rollouts of older weights: set importance_cap to 1 or more "
            "(2 is usual), or collection.max_staleness to 0"
        )
    if c.workers > 1 and engine == "vllm":
        raise ValueError(
            f"{where}.collection.workers = {c.workers}: must be 1 with engine.kind vllm, whose server holds one "
            "version of the weights; raise engine.max_seqs"
        )
