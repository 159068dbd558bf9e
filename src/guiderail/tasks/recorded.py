"""Recorded trajectories: what an expert saw and did, step by step, and what counts as doing the same.

Guarantees: points and boxes are fractions of the screen, boxes have their corners in order; a swipe is always the
finger's gesture, whatever its file meant. Frames are named, not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from guiderail.actions.types import Action, Drag, Scroll

Box = tuple[float, float, float, float]
Direction = Literal["up", "down", "left", "right"]
OPPOSITE: dict[Direction, Direction] = {"up": "down", "down": "up", "left": "right", "right": "left"}


@dataclass(frozen=True)
class Expected:
    """The expert's action, and what is taken for it.

    boxes: (x1, y1, x2, y2) of elements whose click is the same as the expert's click, long press or `Open` (a launcher
    icon). direction: where a swipe scrolls to, when the file says so ("down" shows what is below); else it follows from
    the action.
    """

    action: Action
    boxes: tuple[Box, ...] = ()
    direction: Direction | None = None


@dataclass(frozen=True)
class RecordedStep:
    """One step. frame: sha256 or path of the screen before the action, of `width` x `height` pixels. instruction: the
    step's own (low-level) instruction, "" when there is none. thought: annotated, "" when there is none. raw: the step
    as its file has it, for the reference's scorers."""

    frame: str
    width: int
    height: int
    expected: Expected
    instruction: str = ""
    thought: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Recording:
    """A trajectory. `id` is unique in its file (goals are not)."""

    id: str
    goal: str
    steps: tuple[RecordedStep, ...]


def box(corners: tuple[float, float, float, float]) -> Box:
    """The box with these two corners, whichever they are."""
    x1, y1, x2, y2 = corners
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def gesture(x: float, y: float, x2: float, y2: float, width: int, height: int) -> Direction | None:
    """Where the finger goes: the longer axis in pixels, vertical when equal; None when it does not move."""
    dx, dy = (x2 - x) * width, (y2 - y) * height
    if dx == dy == 0.0:
        return None
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def scroll_direction(action: Action, width: int, height: int) -> Direction | None:
    """Where a swipe or a wheel turn scrolls to: against the finger, with the wheel (dy > 0 is down). None for other
    actions and for one that goes nowhere."""
    if isinstance(action, Drag):
        finger = gesture(action.x, action.y, action.x2, action.y2, width, height)
        return OPPOSITE[finger] if finger else None
    if isinstance(action, Scroll) and (action.dx or action.dy):
        if abs(action.dx) > abs(action.dy):
            return "right" if action.dx > 0 else "left"
        return "down" if action.dy > 0 else "up"
    return None
