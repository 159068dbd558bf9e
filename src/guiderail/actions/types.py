"""The action algebra: what an agent can do to a screen, free of any text format.

Guarantees: every action is a frozen, hashable dataclass; points are fractions of the screen in [0, 1]
(origin top-left); pixel mapping happens in one place (`to_pixel`) and always lands on the screen.
Does not know how a model writes an action: that is a codec (see `guiderail.actions.codec`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Button = Literal["left", "right", "middle"]
Status = Literal["success", "failure"]


@dataclass(frozen=True)
class Click:
    """Press and release `button` at (x, y), `count` times (2 = double click)."""

    x: float
    y: float
    button: Button = "left"
    count: int = 1


@dataclass(frozen=True)
class Move:
    """Move the pointer to (x, y) without pressing."""

    x: float
    y: float


@dataclass(frozen=True)
class LongPress:
    """Touch (x, y), or hold the left button there, for `seconds`."""

    x: float
    y: float
    seconds: float = 1.0


@dataclass(frozen=True)
class Drag:
    """Press the left button at (x, y), move to (x2, y2), release; on a phone, swipe with the finger."""

    x: float
    y: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Scroll:
    """Turn the wheel at (x, y): dx, dy in notches; positive dy moves the content up (scrolls down)."""

    x: float
    y: float
    dx: int = 0
    dy: int = 0


@dataclass(frozen=True)
class Type:
    """Type `text` into the focused element, character by character."""

    text: str


@dataclass(frozen=True)
class Key:
    """Press a chord: all `keys` down in order, then up in reverse (e.g. ("ctrl", "a"))."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Let `seconds` of the environment's time pass."""

    seconds: float = 1.0


@dataclass(frozen=True)
class Open:
    """Open the application named `app`."""

    app: str


@dataclass(frozen=True)
class Answer:
    """Give `text` as the answer to a question task."""

    text: str


@dataclass(frozen=True)
class Nav:
    """A system navigation button of a phone."""

    button: Literal["back", "home", "recent", "menu"]


@dataclass(frozen=True)
class Finish:
    """The agent ends the episode and claims `status` (failure = it calls the task infeasible)."""

    status: Status = "success"


Action = Click | Move | LongPress | Drag | Scroll | Type | Key | Wait | Open | Answer | Nav | Finish


@dataclass(frozen=True)
class Parsed:
    """A codec read `action`; `thought` is the text before the call ("" when there is none)."""

    action: Action
    thought: str = ""


@dataclass(frozen=True)
class ParseFailure:
    """A codec could not read the text. `reason` is one sentence for logs and reports; nothing was executed."""

    reason: str
    text: str = field(default="", repr=False)


def clamp01(v: float) -> float:
    """Clamp a fraction to [0, 1]."""
    return min(1.0, max(0.0, v))


def to_pixel(x: float, y: float, width: int, height: int) -> tuple[int, int]:
    """Map a point in fractions to integer pixels inside a `width` x `height` screen (x=1.0 -> width-1)."""
    return min(int(clamp01(x) * width), width - 1), min(int(clamp01(y) * height), height - 1)
