"""Dynamic sampling (DAPO): keep groups that can teach, generate more until an update is full, lose and invent nothing.

Guarantees: every group generated is counted once as dropped, used or waiting; an update that stays short after its
rounds trains on what it has instead of raising; what is left over waits for the next update, first in, first out, and
is at most one update old when at most `want` groups are added a round. Immutable: `add` and `take` give new states.
Does not generate, and does not know what a group is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from guiderail.algorithms import grouping
from guiderail.algorithms.grouping import BoolArray, FloatArray, IntArray, Keys

T = TypeVar("T")


def keep_groups(
    values: Sequence[float] | FloatArray,
    groups: Keys,
    measured: Sequence[bool] | BoolArray,
    threshold: float = 0.0,
    *,
    singletons: bool = False,
) -> tuple[IntArray, BoolArray]:
    """(group number of each row [n], verdict per group [groups]): keep a group whose spread is above the threshold.

        keep = std(values of the measured members; ddof 0) > threshold     (strict; equal values are never kept)

    Source: Yu et al. 2025, DAPO (arXiv 2503.14476) section 3.2 with threshold 0; UI-S1 uses 0.1 or 0.3 on returns and
    keeps groups of one measured value, which `singletons` does too (they carry no group-relative signal). values: any
    number per member (reward, return); ignored where not measured.
    """
    v, m = np.asarray(values, dtype=np.float64), np.asarray(measured, dtype=np.bool_)
    if not (v.shape == m.shape == (len(groups),)):
        raise ValueError(f"values {v.shape}, measured {m.shape} and groups ({len(groups)},) must have one length")
    if threshold < 0:
        raise ValueError(f"threshold = {threshold}: must be 0 or more")
    found = grouping.of(np.where(m, v, 0.0), grouping.codes(groups), m)
    keep = ~found.small & ~found.flat() & (found.std(0) > threshold)
    return found.index, keep | (found.size == 1) if singletons else keep


@dataclass(frozen=True)
class Counts:
    """What a run has generated so far, in groups, rounds and updates. generated = dropped + used + waiting.

    updates: batches taken; short: those of fewer groups than wanted; empty: those of none (no optimiser step).
    carried: groups used by a later update than the one they were generated for. expired: dropped ones that were kept
    first and became too old.
    """

    rounds: int = 0
    generated: int = 0
    dropped: int = 0
    used: int = 0
    carried: int = 0
    updates: int = 0
    short: int = 0
    empty: int = 0
    expired: int = 0

    def to_json(self) -> dict[str, int]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Refill(Generic[T]):
    """The buffer between generation and updates.

    want: groups per update. max_rounds: rounds of generation an update may take. waiting: kept groups, oldest first.
    old: how many of them are left over from earlier updates. rounds: of the update in the making.
    """

    want: int
    max_rounds: int
    waiting: tuple[T, ...] = ()
    old: int = 0
    rounds: int = 0
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        if self.want < 1 or self.max_rounds < 1:
            raise ValueError(f"want = {self.want}, max_rounds = {self.max_rounds}: both must be 1 or more")

    @property
    def done(self) -> bool:
        """Whether the next update can be taken: the buffer holds enough, or the rounds are used up."""
        return len(self.waiting) >= self.want or self.rounds >= self.max_rounds

    def add(self, groups: Sequence[T], keep: Sequence[bool] | BoolArray) -> Refill[T]:
        """After one round of generation. Raises ValueError when no further round is due."""
        if self.done:
            raise ValueError(f"{len(self.waiting)} groups wait after {self.rounds} rounds: take the update first")
        kept = tuple(g for g, k in zip(groups, keep, strict=True) if k)
        counts = replace(
            self.counts,
            rounds=self.counts.rounds + 1,
            generated=self.counts.generated + len(groups),
            dropped=self.counts.dropped + len(groups) - len(kept),
        )
        return replace(self, waiting=self.waiting + kept, rounds=self.rounds + 1, counts=counts)

    def expire(self, too_old: Sequence[bool]) -> Refill[T]:
        """Drop the waiting groups that are marked."""
        kept = tuple(g for g, x in zip(self.waiting, too_old, strict=True) if not x)
        lost = len(self.waiting) - len(kept)
        counts = replace(self.counts, dropped=self.counts.dropped + lost, expired=self.counts.expired + lost)
        old = self.old - sum(too_old[: self.old])
        return replace(self, waiting=kept, old=old, counts=counts)

    def take(self) -> tuple[tuple[T, ...], Refill[T]]:
        """(groups to train on, oldest first and at most `want`; the state for the next update). ValueError when not
        `done`."""
        if not self.done:
            raise ValueError(
                f"{len(self.waiting)} of {self.want} groups after {self.rounds} of {self.max_rounds} rounds"
            )
        used, rest = self.waiting[: self.want], self.waiting[self.want :]
        counts = replace(
            self.counts,
            used=self.counts.used + len(used),
            carried=self.counts.carried + min(self.old, len(used)),
            updates=self.counts.updates + 1,
            short=self.counts.short + (len(used) < self.want),
            empty=self.counts.empty + (not used),
        )
        return used, replace(self, waiting=rest, old=len(rest), rounds=0, counts=counts)
