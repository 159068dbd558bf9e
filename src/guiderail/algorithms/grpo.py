"""Group-relative advantages (GRPO): from the rewards of sibling episodes to one number per episode.

Guarantees: a pure function of its arguments; infrastructure and judge errors (measured = False) are taken out before
any mean or standard deviation; a group that carries no signal gives zeros and is counted, never divided by a small
number. RLOO and Dr.GRPO are two settings of the same function. Does not know episodes, tokens or tasks: callers map
their rows onto the arrays and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from guiderail.algorithms import grouping
from guiderail.algorithms.grouping import BoolArray, FloatArray, Keys

Scale = Literal["std", "none"]
Baseline = Literal["mean", "leave_one_out"]


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of one batch and what became of its groups.

    values: float64 [n], 0 wherever `kept` is False. kept: bool [n], measured members of groups with spread.
    groups = groups_kept + groups_small + groups_flat: all groups, those that carry signal, those with fewer than two
    measured members, those whose measured rewards are all equal. spread: mean over groups of two or more measured
    members of the population standard deviation of their rewards (0 when there is none). unmeasured: members excluded
    before the baseline.
    """

    values: FloatArray
    kept: BoolArray
    groups: int
    groups_small: int
    groups_flat: int
    spread: float
    unmeasured: int

    @property
    def groups_kept(self) -> int:
        """Groups that carry a learning signal."""
        return self.groups - self.groups_small - self.groups_flat


def group_advantages(
    rewards: Sequence[float] | FloatArray,
    groups: Keys,
    measured: Sequence[bool] | BoolArray,
    *,
    scale: Scale = "std",
    baseline: Baseline = "mean",
    ddof: int = 1,
    eps: float = 1e-6,
    flat: float = 1e-8,
) -> GroupAdvantages:
    """Advantage of every episode relative to the measured members of its group.

    For the measured members r_1..r_n of a group::

        scale "std":   A_i = (r_i - b_i) / (std(r; ddof) + eps)     std(r; ddof)^2 = sum (r_i - mean)^2 / (n - ddof)
        scale "none":  A_i =  r_i - b_i
        baseline "mean":           b_i = mean(r)
        baseline "leave_one_out":  b_i = sum_{j != i} r_j / (n - 1), so that r_i - b_i = n / (n - 1) * (r_i - mean(r))

    Source: Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), section 4.1.2, outcome supervision; it does not state
    ddof. TRL and verl use torch's default, ddof = 1; openadapt-ml uses ddof = 0 (they differ by sqrt((n-1)/n)). scale
    "none" is the unscaled form of Liu et al. 2025, "Dr. GRPO" (arXiv 2503.20783), which removes the weight that std
    puts on easy and hard tasks. "leave_one_out" with scale "none" is RLOO (Kool et al. 2019; Ahmadian et al. 2024,
    arXiv 2402.14740): a baseline that does not hold r_i leaves the gradient unbiased.

    Singleton rule: fewer than two measured members -> 0, counted in `groups_small` (not the raw reward, not reward /
    eps).
    Zero-variance rule: population std <= `flat` -> 0, counted in `groups_flat`.

    rewards [n]: any finite number where measured; ignored (may be nan) where not. groups [n]: group key of each member.
    Raises ValueError on lengths that differ, ddof outside {0, 1}, or a measured reward that is not finite.
    """
    r = np.asarray(rewards, dtype=np.float64)
    m = np.asarray(measured, dtype=np.bool_)
    if not (r.shape == m.shape == (len(groups),)):
        raise ValueError(f"rewards {r.shape}, measured {m.shape} and groups ({len(groups)},) must have one length")
    if ddof not in (0, 1):
        raise ValueError(f"ddof = {ddof}: must be 0 (population) or 1 (sample)")
    if not np.isfinite(r[m]).all():
        raise ValueError(f"measured rewards must be finite, got {r[m & ~np.isfinite(r)].tolist()}")

    found = grouping.of(np.where(m, r, 0.0), grouping.codes(groups), m)
    spread = found.std(0)
    level = ~found.small & (found.flat() | (spread <= flat))
    carries = ~found.small & ~level
    kept = m & carries[found.index] if len(r) else m
    centred = np.where(kept, r, 0.0)
    centred[kept] -= found.mean[found.index[kept]]
    if baseline == "leave_one_out":
        centred[kept] *= (found.size / np.maximum(found.size - 1, 1))[found.index[kept]]
    elif baseline != "mean":
        raise ValueError(f"baseline {baseline!r}: must be mean or leave_one_out")
    if scale == "std":
        centred[kept] /= found.std(ddof)[found.index[kept]] + eps
    elif scale != "none":
        raise ValueError(f"scale {scale!r}: must be std or none")
    some = ~found.small
    return GroupAdvantages(
        values=centred,
        kept=kept,
        groups=len(found.size),
        groups_small=int(found.small.sum()),
        groups_flat=int(level.sum()),
        spread=float(spread[some].mean()) if some.any() else 0.0,
        unmeasured=int((~m).sum()),
    )
