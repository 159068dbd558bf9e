"""Seeded order: a permutation fixed by words, the same on every machine; no global generator, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from guiderail.seeds import derive_seed

T = TypeVar("T")


def shuffled(items: Sequence[T], *parts: str | int) -> list[T]:
    """`items` in an order fixed by `parts`, e.g. ("sft", seed, epoch): sorted by the hash of (parts, position)."""
    order = sorted(range(len(items)), key=lambda i: derive_seed(*parts, i))
    return [items[i] for i in order]
