"""What of a step can be measured instead of judged: did the screen change, and where.

Guarantees: a pure function of the two frames and the step; exact pixels, so a change that a model would not see in a
scaled picture is told. Judges are told it in words (`rubrics`), since small models read words better than differences
of pictures. Does not say whether a change was a good one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guiderail.rewards.process import StepContext

Change = Literal["same", "here", "away", "changed", "unseen"]
"""same: no pixel differs. here, away: pixels near the step's point differ, or only others. changed: some differ, and
the step has no point. unseen: the step ended the episode and nobody looked again."""

REACH = 0.075
"""How far from the point a change is near, as a share of the screen's width."""
NOISE = 8
"""Differences of a colour channel up to this (of 255) are none."""


def change_of(step: StepContext, pixels: Callable[[str], NDArray[Any]]) -> Change:
    """The change of a step. pixels: frame -> uint8 RGB [height, width, 3]; asked only when the frames differ."""
    if step.before == step.after:
        return "unseen" if step.ended else "same"
    before, after = pixels(step.before), pixels(step.after)
    if before.shape != after.shape:  # the screen took another size
        return "changed"
    differs = (np.abs(before.astype(np.int16) - after) > NOISE).any(axis=2)
    if not differs.any():
        return "same"
    if step.point is None:
        return "changed"
    height, width = differs.shape
    x, y, reach = int(step.point[0] * width), int(step.point[1] * height), round(REACH * width)
    near = differs[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]
    return "here" if near.any() else "away"


def repeated(step: StepContext) -> bool:
    """Whether the agent said the same of an earlier step."""
    return step.said in step.history
