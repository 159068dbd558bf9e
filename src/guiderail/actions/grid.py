"""How a text format writes points: thousandths of the screen, or pixels of a screen of known size.

Guarantees: `read(write(x, y))` is the nearest point that the grid has and is read back exactly; what is off the screen
is a ValueError; clamping to the last pixel happens in `to_pixel` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from guiderail.actions.bounds import RESOLUTION, checked
from guiderail.actions.jsontext import pair, quote
from guiderail.actions.types import Action, from_pixel, to_pixel


class Grid(Protocol):
    """One convention of coordinates."""

    def read(self, value: Any, name: str) -> tuple[float, float]:
        """The point written as the list [x, y], in fractions. Raises ValueError naming what is wrong."""
        ...

    def write(self, x: float, y: float) -> list[int]:
        """The point (fractions) as [x, y]."""
        ...


@dataclass(frozen=True)
class Thousandths:
    """0 to 1000 on either axis; 1000 is the far edge. Fractions of a thousandth are read, never written."""

    def read(self, value: Any, name: str) -> tuple[float, float]:
        """See `Grid.read`."""
        x, y = pair(value, name)
        _on_screen(value, x, y, 1000, 1000, name)
        return x / 1000, y / 1000

    def write(self, x: float, y: float) -> list[int]:
        """See `Grid.write`."""
        return [round(x * 1000), round(y * 1000)]


@dataclass(frozen=True)
class Pixels:
    """Pixels of a screen of width x height from its top left; width and height themselves are the far edges."""

    width: int
    height: int

    def read(self, value: Any, name: str) -> tuple[float, float]:
        """See `Grid.read`."""
        x, y = pair(value, name)
        _on_screen(value, x, y, self.width, self.height, name)
        return from_pixel(x, y, self.width, self.height)

    def write(self, x: float, y: float) -> list[int]:
        """See `Grid.write`."""
        return list(to_pixel(x, y, self.width, self.height))


@dataclass(frozen=True)
class UnknownScreen:
    """Pixels of a screen whose size nobody has said: refuses every point."""

    def read(self, value: Any, name: str) -> tuple[float, float]:
        """Raises ValueError."""
        raise ValueError(f"{name} is in pixels of a screen of unknown size; take the codec with at(width, height)")

    def write(self, x: float, y: float) -> list[int]:
        """Raises ValueError."""
        raise ValueError("points are in pixels of a screen of unknown size; take the codec with at(width, height)")


THOUSANDTHS = Thousandths()
UNKNOWN_SCREEN = UnknownScreen()


def screen(width: int, height: int) -> Pixels:
    """The pixels of a frame. Raises ValueError on an empty one."""
    if width < 1 or height < 1:
        raise ValueError(f"a frame of {width}x{height} pixels: both sides must be at least 1")
    return Pixels(width, height)


def _on_screen(value: Any, x: float, y: float, width: int, height: int, name: str) -> None:
    if not (0 <= x <= width and 0 <= y <= height):
        bounds = f"[0, {width}]" if width == height else f"[0, {width}] x [0, {height}]"
        raise ValueError(f"{name} {quote(value)} is outside {bounds}")


def snap(action: Action, grid: Grid) -> Action:
    """`checked(action)` with its points on `grid` and seconds at 0.001. Idempotent. Raises like `checked`."""
    action = checked(action)
    new: dict[str, Any] = {}
    for fx, fy in (("x", "y"), ("x2", "y2")):
        if hasattr(action, fx):
            new[fx], new[fy] = grid.read(grid.write(getattr(action, fx), getattr(action, fy)), "point")
    if hasattr(action, "seconds"):
        new["seconds"] = round(action.seconds * RESOLUTION) / RESOLUTION
    return replace(action, **new) if new else action


def plain(number: float) -> int | float:
    """A whole number as int, so that it is written without a decimal point."""
    return int(number) if float(number).is_integer() else number
