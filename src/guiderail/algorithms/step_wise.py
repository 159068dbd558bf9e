"""Step-wise RL with a process reward model: advantages of single steps from their votes and the episode's outcome.

Guarantees: an episode without a measured outcome is taken out before any baseline; what cannot be compared (fewer than
two measured members, no spread) gives exactly 0 and is counted; steps without a valid vote count with process score 0
and are counted. float64; the order of the rows changes no bit. What gui-rl computes, faults included, is
`reference_step_wise`. Does not judge steps: see the PRM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from guiderail.algorithms import grouping
from guiderail.algorithms.grouping import BoolArray, FloatArray, IntArray, Keys
from guiderail.algorithms.returns import Order, discounted, in_order

Credit = Literal["bucket", "return_to_go", "outcome_anchored"]


@dataclass(frozen=True)
class StepWise:
    """Per row [n]: advantage, step reward r, and whether it carries a signal.

    compared: buckets (or groups, under "outcome_anchored"); small, flat: of them without two measured members, without
    spread. unvoted: measured rows without a valid vote. unmeasured: rows left out.
    """

    values: FloatArray
    rewards: FloatArray
    kept: BoolArray
    compared: int
    small: int
    flat: int
    unvoted: int
    unmeasured: int


def mean_votes(votes: NDArray[np.floating]) -> FloatArray:
    """Mean of the valid votes of each step, nan where none is; votes [n, m] of +1, -1, and nan for an invalid one."""
    v = np.asarray(votes, dtype=np.float64)
    valid = ~np.isnan(v)
    if not np.isin(v[valid], (-1.0, 1.0)).all():
        raise ValueError("votes must be +1, -1 or nan (invalid)")
    count = valid.sum(axis=1)
    mean: FloatArray = np.full(len(v), np.nan)
    np.divide(np.where(valid, v, 0.0).sum(axis=1), count, out=mean, where=count > 0)
    return mean


def step_wise_advantages(
    outcome: FloatArray,
    process: FloatArray,
    group: Keys,
    trajectory: Keys,
    step: IntArray,
    measured: BoolArray,
    *,
    coef: float = 1.0,
    credit: Credit = "bucket",
    gamma: float = 1.0,
    ddof: int = 1,
    eps: float = 1e-6,
    flat: float = 1e-8,
) -> StepWise:
    """Advantage of every step. With o_i the outcome of trajectory i, p_it the process score of its step t (0 without a
    valid vote), r_it = o_i + coef * p_it and T its last step::

        bucket:            (r_it - mean) / (std + eps)     over the rows of the bucket (group, t)
        return_to_go:      (G_it - mean) / (std + eps)     over the same, G_it = gamma^(T-t) o_i
                                                                    + coef * sum_{k >= t} gamma^(k-t) p_ik
        outcome_anchored:  r_it - mean_{j != i} (o_j + coef * mean_t p_jt)

    "bucket" compares different states once trajectories diverge, and a step gets no credit for what it led to.
    "return_to_go" mends the second: later votes count, and the outcome counts once, at the end. "outcome_anchored"
    mends the first: one baseline per trajectory, from its siblings alone (leave-one-out, so it is unbiased), each
    sibling one vote however long; unscaled as RLOO.
    Source: OpenClaw-RL (gui-rl) for r and "bucket", which uses ddof 0 and no coef.

    outcome [n]: repeated on the rows of its trajectory, e.g. +1 or -1. process [n]: see `mean_votes`; nan = no valid
    vote. group, trajectory [n]: any keys (a trajectory is named within its group); step int [n], consecutive. measured
    [n]: False on the rows of an infrastructure or judge error; one such row takes its whole trajectory out.
    Zero-variance rule: range 0 or std (ddof 0) <= `flat`. Raises ValueError on lengths that differ, gaps, an outcome
    that differs within a trajectory, or one that is not finite.
    """
    o, m = np.asarray(outcome, dtype=np.float64), np.asarray(measured, dtype=np.bool_)
    p, k = np.asarray(process, dtype=np.float64), np.asarray(step, dtype=np.int64)
    if not (o.shape == m.shape == p.shape == k.shape == (len(group),) == (len(trajectory),)):
        raise ValueError("outcome, process, group, trajectory, step and measured must have one length")
    if ddof not in (0, 1):
        raise ValueError(f"ddof = {ddof}: must be 0 (population) or 1 (sample)")
    if not np.isfinite(o[m]).all():
        raise ValueError(f"measured outcomes must be finite, got {o[m & ~np.isfinite(o)].tolist()}")
    g = grouping.codes(group)
    order = in_order(grouping.pairs(g, grouping.codes(trajectory)), k)
    rows = m if m.all() else np.bincount(order.trajectory, ~m)[order.trajectory] == 0
    o, voted = np.where(rows, o, 0.0), ~np.isnan(p)
    p = np.where(rows & voted, p, 0.0)
    if len(o) and (o[order.rows] != o[order.rows[order.last]]).any():
        raise ValueError("outcome differs within a trajectory: it is one number per episode, repeated on its rows")
    r = o + coef * p

    if credit == "outcome_anchored":
        values, found, level = _anchored(r, g, order, rows, flat)
    else:
        x = r
        if credit == "return_to_go":
            is_last = np.arange(len(o)) == order.last
            x = np.empty_like(r)
            x[order.rows] = discounted(coef * p[order.rows] + is_last * o[order.rows], order.last, gamma)
        elif credit != "bucket":
            raise ValueError(f"credit {credit!r}: must be bucket, return_to_go or outcome_anchored")
        found = grouping.of(x, grouping.pairs(g, k), rows)
        level = found.flat() | (~found.small & (found.std(0) <= flat))
        values = x
    kept = rows & ~(found.small | level)[found.index] if len(r) else rows
    values = np.where(kept, values, 0.0)
    if credit != "outcome_anchored":
        at = found.index[kept]
        values[kept] = (values[kept] - found.mean[at]) / (found.std(ddof)[at] + eps)
    return StepWise(
        values=values,
        rewards=r,
        kept=kept,
        compared=len(found.size),
        small=int(found.small.sum()),
        flat=int(level.sum()),
        unvoted=int((rows & ~voted).sum()),
        unmeasured=int((~rows).sum()),
    )


def _anchored(
    r: FloatArray, g: IntArray, order: Order, rows: BoolArray, flat: float
) -> tuple[FloatArray, grouping.Groups, BoolArray]:
    """(r - mean of the siblings' mean r [n]; trajectories by group, `index` by row; groups whose rows all have one
    reward)."""
    at, one = order.trajectory, order.rows[order.ends]
    score = np.bincount(at[order.rows], r[order.rows]) / np.maximum(np.bincount(at), 1)
    found = grouping.of(score, g[one], rows[one])
    size, mean = found.size[found.index], found.mean[found.index]
    others = (size * mean - score) / np.maximum(size - 1, 1)
    every = grouping.of(r, g, rows)  # numbers the groups by key, as `found` does
    level = ~found.small & ((every.high - every.low <= 0.0) | (every.std(0) <= flat))
    return r - others[at], replace(found, index=every.index), level


@dataclass(frozen=True)
class ReferenceStepWise:
    """Advantages as gui-rl computes them, and the rows that it removes from the loss."""

    values: FloatArray
    removed: BoolArray


def reference_step_wise(
    outcome: FloatArray, process: FloatArray, group: Keys, step: IntArray, aborted: BoolArray
) -> ReferenceStepWise:
    """gui-rl's step_wise estimator, faults included, for comparison with its numbers only::

        r = o + p, without coefficient; 0 for the rows of an aborted episode, which stay in their bucket
        bucket (group, step): n = 1 -> r itself; population variance <= 1e-12 -> its rows removed;
        else (r - mean) / (sqrt(E[x^2] - mean^2) + 1e-6)

    When every bucket is removed the first one stays, with advantages of 0. Rows of aborted episodes are removed.
    outcome [n]: +1 or -1 on the rows of an episode; process [n]: mean vote, 0 without a valid one.
    """
    gone = np.asarray(aborted, dtype=np.bool_)
    r = np.where(gone, 0.0, np.asarray(outcome, dtype=np.float64) + np.asarray(process, dtype=np.float64))
    key = grouping.pairs(grouping.codes(group), np.asarray(step, dtype=np.int64))
    found = grouping.of(r, key, np.ones(len(r), dtype=np.bool_))
    constant = ~found.small & (found.std(0) ** 2 <= 1e-12)
    if len(constant) and constant.all():
        constant[found.index[0]] = False
    std = found.std(0)[found.index] if len(r) else r
    scaled = (r - found.mean[found.index]) / (std + 1e-6) if len(r) else r
    lone = found.small[found.index] if len(r) else gone
    removed = gone | constant[found.index] if len(r) else gone
    return ReferenceStepWise(np.where(removed, 0.0, np.where(lone, r, scaled)), removed)
