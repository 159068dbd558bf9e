"""Counting by category: the distinct combinations of categories with their counts, as columns of codes.

Guarantees: the counts of a filter's values are what choosing that value would give, the other filters kept; the
episodes themselves are never touched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guiderail.report.viewer.reading import CELL

MADE = {name: i for i, name in enumerate(("base", "base_demo", "sft", "sft_demo", "rl", "rl_demo"))}
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Cells:
    """The cells of one state of the index as columns of codes, so that counting by category is a few vector sums."""

    def __init__(self, rows: Sequence[sqlite3.Row]) -> None:
        self.rows: list[dict[str, Any]] = [dict(r) for r in rows]
        self.ids = np.array([r["id"] for r in self.rows], dtype=np.int64)
        self.sizes = np.array([r["n"] for r in self.rows], dtype=np.int64)
        self.by_id = {r["id"]: r for r in self.rows}
        self.values: dict[str, list[str]] = {}
        self.codes: dict[str, IntArray] = {}
        for name in CELL:
            self.values[name] = sorted({r[name] for r in self.rows})
            code = {v: i for i, v in enumerate(self.values[name])}
            self.codes[name] = np.array([code[r[name]] for r in self.rows], dtype=np.int64)

    def places(self, ids: IntArray) -> IntArray:
        """Row of each cell id, int64; -1 for one that is not among them (its episodes are not counted yet)."""
        if not len(self.ids):
            return np.full(len(ids), -1, dtype=np.int64)
        order = np.argsort(self.ids)
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=order), len(order) - 1)
        found: IntArray = np.where(self.ids[order[at]] == ids, order[at], -1)
        return found

    def kept(self, chosen: Mapping[str, frozenset[str]], but: str = "") -> BoolArray:
        """Which cells are among the chosen values, category `but` left aside."""
        keep = np.ones(len(self.rows), dtype=np.bool_)
        for name, values in chosen.items():
            if name != but:
                codes = [i for i, v in enumerate(self.values[name]) if v in values]
                keep &= np.isin(self.codes[name], codes)
        return keep

    def facet(self, counts: IntArray, chosen: Mapping[str, frozenset[str]], name: str) -> list[list[Any]]:
        """[value, count] of a category, most frequent first, checkpoints of one count as they are made; what is chosen
        is there even at 0."""
        n = np.bincount(self.codes[name], counts * self.kept(chosen, but=name), len(self.values[name])).astype(int)
        found = {v: int(k) for v, k in zip(self.values[name], n, strict=True) if k}
        found = dict.fromkeys(chosen.get(name, ()), 0) | found
        return sorted(([k, v] for k, v in found.items()), key=lambda kv: (-kv[1], MADE.get(kv[0], len(MADE)), kv[0]))
