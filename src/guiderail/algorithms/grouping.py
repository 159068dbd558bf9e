"""Rows gathered by key, and sums over each gathering, without a Python loop over rows.

Guarantees: results depend on the values of a group, not on the order of its rows, to the last bit (a group is summed in
the order of its values); a group is called flat by its range, which is exactly 0 for equal values in any float format.
O(n log n). Does not know rewards or tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Keys = Sequence[Hashable] | NDArray[np.generic]


def codes(keys: Keys) -> IntArray:
    """Keys as int64 numbers, equal where the keys are, [n]. Arrays are numbered by value, other keys by first place."""
    if isinstance(keys, np.ndarray):
        if keys.ndim != 1:
            raise ValueError(f"keys of shape {keys.shape}: one key a row")
        numbers = keys if keys.dtype.kind in "iub" else np.unique(keys, return_inverse=True)[1]
        as_int: IntArray = np.asarray(numbers).astype(np.int64)
        return as_int
    seen: dict[Hashable, int] = {}
    return np.fromiter((seen.setdefault(k, len(seen)) for k in keys), dtype=np.int64, count=len(keys))


def pairs(first: IntArray, second: IntArray) -> IntArray:
    """One number for each different (first, second), [n]: the key of a bucket (group, step)."""
    if not len(first):
        return first
    low, width = int(second.min()), int(np.ptp(second)) + 1
    span = int(np.ptp(first)) + 1
    if span * width >= 2**62:  # numbers too far apart to be told apart in 64 bits
        first = codes(first.astype(str))
    found: IntArray = (first - first.min()) * width + (second - low)
    return found


@dataclass(frozen=True)
class Groups:
    """Statistics of `values` by group, each [groups]; `index` [n] says which group a row is of.

    size: members. mean. square: sum of squared distances from the mean. low, high: smallest and largest value (0 for a
    group without members, which `of` makes for rows that were not measured).
    """

    index: IntArray
    size: IntArray
    mean: FloatArray
    square: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def small(self) -> BoolArray:
        """Groups of fewer than two members."""
        return self.size < 2

    def flat(self, tolerance: float = 0.0) -> BoolArray:
        """Groups of two or more whose values differ by no more than `tolerance`."""
        return ~self.small & (self.high - self.low <= tolerance)

    def std(self, ddof: int) -> FloatArray:
        """Standard deviation with divisor size - ddof; 0 where that is no positive number."""
        divisor = self.size - ddof
        return np.sqrt(np.divide(self.square, divisor, out=np.zeros_like(self.square), where=divisor > 0))


def of(values: FloatArray, keys: IntArray, measured: BoolArray) -> Groups:
    """Gather `values` [n] by `keys` [n], taking only `measured` [n] rows into the statistics."""
    order = np.lexsort((values, keys))
    index = np.empty(len(keys), dtype=np.int64)
    index[order] = np.cumsum(np.diff(keys[order], prepend=keys[order[:1]]) != 0) if len(keys) else 0
    count = int(index[order[-1]]) + 1 if len(keys) else 0
    rows = order[measured[order]]
    owner, ordered = index[rows], values[rows]
    size = np.bincount(owner, minlength=count).astype(np.int64)
    mean = np.bincount(owner, ordered, minlength=count) / np.maximum(size, 1)
    square = np.bincount(owner, (ordered - mean[owner]) ** 2, minlength=count).astype(np.float64)
    low, high = np.zeros(count), np.zeros(count)
    some = np.flatnonzero(size)
    last = np.cumsum(size)[some] - 1
    low[some], high[some] = ordered[last - size[some] + 1], ordered[last]
    return Groups(index, size, mean, square, low, high)
