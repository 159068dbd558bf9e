"""Semi-online RL (UI-S1): advantages of steps that were taken along recorded trajectories.

Guarantees: a trajectory with a row that was not measured takes no part in any statistic and gets 0; groups and buckets
of fewer than two measured members, or without spread, give exactly 0 and are counted, except under the statistic that
is named after the reference. float64; the order of the rows changes no bit. Does not score steps and does not patch:
see `guiderail.rewards` and `algorithms.patch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from guiderail.algorithms import grouping
from guiderail.algorithms.grouping import BoolArray, FloatArray, IntArray, Keys
from guiderail.algorithms.returns import Order, SegmentRule, in_order, segment_returns_in

Statistic = Literal["sum", "first_return", "last_return", "reference_row"]
Norm = Literal["mean_norm", "mean_std_norm"]


@dataclass(frozen=True)
class SemiOnline:
    """Per row [n]: values = w_E * episode + w_S * step, and the segment returns they were made from.

    groups, buckets: task groups and (group, step) buckets; *_small: fewer than two measured members; *_flat: no spread.
    unmeasured: rows of trajectories that were left out.
    """

    values: FloatArray
    episode: FloatArray
    step: FloatArray
    returns: FloatArray
    groups: int
    groups_small: int
    groups_flat: int
    buckets: int
    buckets_small: int
    buckets_flat: int
    unmeasured: int


def normalised(
    x: FloatArray, found: grouping.Groups, rows: BoolArray, norm: Norm, eps: float = 1e-6, flat: float = 1e-8
) -> FloatArray:
    """Each x [n] relative to its group::

        mean_norm:      x - mean
        mean_std_norm: (x - mean) / (std + eps)        std with divisor n - 1

    0 outside `rows`, in groups of fewer than two, and in groups whose range is 0 or whose std (ddof 0) is <= `flat`.
    """
    level = found.small | found.flat() | (found.std(0) <= flat)
    use = rows & ~level[found.index] if len(x) else rows
    out = np.where(use, x, 0.0)
    at = found.index[use]
    out[use] -= found.mean[at]
    if norm == "mean_std_norm":
        out[use] /= found.std(1)[at] + eps
    elif norm != "mean_norm":
        raise ValueError(f"norm {norm!r}: must be mean_norm or mean_std_norm")
    return out


def trajectory_statistic(rewards: FloatArray, returns: FloatArray, order: Order, statistic: Statistic) -> FloatArray:
    """One number per trajectory, [trajectories]; rewards, returns [n].

    sum:           sum_t r_t            what the article says, and the return of the whole trajectory
    first_return:  R at the first step
    last_return:   R at the last step   the paper's "computed as R_T"
    """
    if not len(order.ends):
        return np.zeros(0)
    if statistic == "sum":
        return np.bincount(order.trajectory[order.rows], rewards[order.rows]).astype(np.float64)  # added step by step
    places = {"last_return": order.ends, "first_return": np.append(0, order.ends[:-1] + 1)}
    if statistic in places:
        picked: FloatArray = returns[order.rows[places[statistic]]]
        return picked
    raise ValueError(f"statistic {statistic!r}: must be sum, first_return, last_return or reference_row")


def semi_online_advantages(
    rewards: FloatArray,
    matched: BoolArray,
    group: Keys,
    trajectory: Keys,
    step: IntArray,
    measured: BoolArray,
    *,
    gamma: float = 0.5,
    rule: SegmentRule = "code",
    statistic: Statistic = "sum",
    norm: Norm = "mean_std_norm",
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    eps: float = 1e-6,
) -> SemiOnline:
    """A = episode_weight * A^E + step_weight * A^S of every row (one step of one rollout of a recorded task)::

        A^S: segment return R_t, relative to the bucket (group, step) over the rollouts
        A^E: the trajectory's statistic, relative to the rollouts of the group, one vote each

    Source: UI-S1 (arXiv 2509.11543) equations 9 to 12; ddof 1. statistic "reference_row" is the released code: A^E of a
    row compares the reward of that one step with those of all steps of all rollouts of the group, and a group of one
    row keeps its raw reward (over 1 + eps), so that a lone wrong step is praised. All statistics agree on A^S.

    rewards, matched, measured [n]; group, trajectory [n] any keys (a trajectory is named within its group); step int
    [n], consecutive. Raises ValueError on lengths that differ, gaps, or a measured reward that is not finite.
    """
    r, m = np.asarray(rewards, dtype=np.float64), np.asarray(measured, dtype=np.bool_)
    hit, k = np.asarray(matched, dtype=np.bool_), np.asarray(step, dtype=np.int64)
    if not (r.shape == m.shape == hit.shape == k.shape == (len(group),) == (len(trajectory),)):
        raise ValueError("rewards, matched, group, trajectory, step and measured must have one length")
    if not np.isfinite(r[m]).all():
        raise ValueError(f"measured rewards must be finite, got {r[m & ~np.isfinite(r)].tolist()}")
    g = grouping.codes(group)
    order = in_order(grouping.pairs(g, grouping.codes(trajectory)), k)
    rows = m if m.all() else np.bincount(order.trajectory, ~m)[order.trajectory] == 0
    r = np.where(rows, r, 0.0)
    returns = segment_returns_in(order, r, hit, gamma, rule)

    buckets = grouping.of(returns, grouping.pairs(g, k), rows)
    by_step = normalised(returns, buckets, rows, norm, eps)
    if statistic == "reference_row":
        groups = grouping.of(r, g, rows)
        by_episode = normalised(r, groups, rows, norm, eps)
        lone = rows & (groups.size == 1)[groups.index] if len(r) else rows
        by_episode[lone] = r[lone] / (1.0 + eps if norm == "mean_std_norm" else 1.0)
    else:
        one = order.rows[order.ends]  # a row of each trajectory
        x = trajectory_statistic(r, returns, order, statistic)
        groups = grouping.of(x, g[one], rows[one])
        by_episode = normalised(x, groups, rows[one], norm, eps)[order.trajectory]
    return SemiOnline(
        values=episode_weight * by_episode + step_weight * by_step,
        episode=by_episode,
        step=by_step,
        returns=returns,
        groups=len(groups.size),
        groups_small=int(groups.small.sum()),
        groups_flat=int(groups.flat().sum()),
        buckets=len(buckets.size),
        buckets_small=int(buckets.small.sum()),
        buckets_flat=int(buckets.flat().sum()),
        unmeasured=int((~rows).sum()),
    )
