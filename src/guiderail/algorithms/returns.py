"""Discounted sums along trajectories, for all rows at once.

Guarantees: rows may come in any order and a row's return does not depend on it; steps of a trajectory that are missing
or listed twice are refused, since a sum over a gap is no return. O(n log n) whatever the lengths. float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from guiderail.algorithms.grouping import BoolArray, FloatArray, IntArray, Keys, codes, pairs

SegmentRule = Literal["code", "paper"]


@dataclass(frozen=True)
class Order:
    """Rows sorted by (trajectory, step). rows [n]: row at each place. last [n]: place of the last row of the
    trajectory that each place belongs to. trajectory [n]: of each row (not place), numbered from 0 as their last places
    `ends` [trajectories] are."""

    rows: IntArray
    last: IntArray
    trajectory: IntArray
    ends: IntArray


def in_order(trajectory: Keys, step: IntArray) -> Order:
    """Sort rows by trajectory and step.

    step: int [n], consecutive within a trajectory, from any number. Raises ValueError on a gap or a repeated step.
    """
    t, k = codes(trajectory), np.asarray(step, dtype=np.int64)
    if t.shape != k.shape:
        raise ValueError(f"trajectory {t.shape} and step {k.shape} must have one length")
    if not len(t):
        return Order(t, t, t, t)
    rows = np.argsort(pairs(t, k))
    same = t[rows][1:] == t[rows][:-1]
    bad = np.flatnonzero(same & (np.diff(k[rows]) != 1))
    if len(bad):
        a, b = rows[bad[0]], rows[bad[0] + 1]
        raise ValueError(
            f"rows {a} and {b} of one trajectory have steps {k[a]} and {k[b]}: they must follow each other"
        )
    ends = np.flatnonzero(np.append(~same, True))
    size = np.diff(ends, prepend=-1)
    number = np.empty_like(t)
    number[rows] = np.repeat(np.arange(len(ends)), size)
    return Order(rows, np.repeat(ends, size), number, ends)


def discounted(rewards: FloatArray, last: IntArray, gamma: float) -> FloatArray:
    """R_i = sum over k in [i, last_i] of gamma^(k - i) * rewards_k, [n], by doubling: log2(longest) passes.

    last: place where the sum of each place ends; equal for all places of a segment.
    """
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma = {gamma}: must lie in [0, 1]")
    total = np.array(rewards, dtype=np.float64)
    place, shift, factor = np.arange(len(total)), 1, gamma
    longest = int((last - place).max()) if len(total) else 0
    while shift <= longest and factor > 0.0:
        ahead = total[shift:] * (last[:-shift] >= place[shift:])
        total[:-shift] += factor * ahead
        shift, factor = 2 * shift, factor * factor
    return total


def returns_to_go(rewards: FloatArray, trajectory: Keys, step: IntArray, gamma: float = 1.0) -> FloatArray:
    """R_t = sum_{k >= t} gamma^(k - t) r_k along the row's trajectory, [n] in the order of the rows."""
    order = in_order(trajectory, step)
    out = np.empty(len(order.rows))
    out[order.rows] = discounted(np.asarray(rewards, dtype=np.float64)[order.rows], order.last, gamma)
    return out


def segment_returns(
    rewards: FloatArray,
    matched: BoolArray,
    trajectory: Keys,
    step: IntArray,
    gamma: float = 0.5,
    rule: SegmentRule = "code",
) -> FloatArray:
    """Returns of semi-online RL, which stop at the first step that missed the expert, [n] in the order of the rows.

        matched step t:     R_t = sum_{k = t}^{e} gamma^(k - t) r_k
        missed step t:      R_t = r_t
        rule "code":        e = last step of the unbroken run of matches from t
        rule "paper":       e = one further, if the trajectory goes on: the missed step's partial reward counts

    Source: UI-S1 (arXiv 2509.11543) equation 9 for "paper"; its released code and article follow "code".
    """
    return segment_returns_in(in_order(trajectory, step), rewards, matched, gamma, rule)


def segment_returns_in(
    order: Order, rewards: FloatArray, matched: BoolArray, gamma: float, rule: SegmentRule
) -> FloatArray:
    """`segment_returns` of rows whose order is known."""
    n = len(order.rows)
    if not n:
        return np.zeros(0)
    r = np.asarray(rewards, dtype=np.float64)[order.rows]
    hit = np.asarray(matched, dtype=np.bool_)[order.rows]
    place = np.arange(n)
    # the first missed place at or after each place; n when there is none
    miss = np.minimum.accumulate(np.where(hit, n, place)[::-1])[::-1]
    end = np.minimum(miss, order.last)
    if rule == "code":
        end = np.where(hit & (miss <= order.last), miss - 1, end)
    elif rule != "paper":
        raise ValueError(f"rule {rule!r}: must be code or paper")
    out = np.empty(n)
    out[order.rows] = discounted(r, end, gamma)
    return out
