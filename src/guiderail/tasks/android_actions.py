"""AndroidControl's raw actions, boxes and directions as typed ones.

Guarantees: what cannot be expressed is a ValueError that says why, never another action. Coordinates are pixels of a
screen whose size the caller knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from guiderail.actions.types import Action, Answer, Click, Drag, Finish, Key, LongPress, Nav, Open, Type, Wait
from guiderail.tasks.recorded import OPPOSITE, Box, Direction, box

ARGUMENTS: dict[str, tuple[set[str], set[str]]] = {  # action -> arguments it must have, may have
    "click": ({"coordinate"}, {"bbox"}),
    "long_press": ({"coordinate"}, {"bbox", "time"}),
    "swipe": ({"coordinate", "coordinate2"}, {"direction"}),
    "type": ({"text"}, set()),
    "answer": ({"text"}, set()),
    "key": ({"text"}, set()),
    "system_button": ({"button"}, set()),
    "open": ({"text"}, {"bbox"}),
    "wait": (set(), {"time"}),
    "terminate": ({"status"}, set()),
}
BUTTONS: dict[str, Action] = {"back": Nav("back"), "home": Nav("home"), "menu": Nav("menu"), "enter": Key(("enter",))}


def boxes(found: Any) -> list[tuple[float, float, float, float]]:
    """Boxes of one flat box, a list of any number of boxes, or nothing. ValueError."""
    if not found:
        return []
    listed = [found] if all(isinstance(v, int | float) for v in found) else list(found)
    if any(len(b) != 4 for b in listed):
        raise ValueError(f"boxes must have four numbers, got {found!r}")
    return [(float(b[0]), float(b[1]), float(b[2]), float(b[3])) for b in listed]


def fraction(b: tuple[float, float, float, float], width: int, height: int) -> Box:
    """Fractions of the screen, cut at its edges."""
    x1, y1, x2, y2 = box(b)
    return max(0.0, x1 / width), max(0.0, y1 / height), min(1.0, x2 / width), min(1.0, y2 / height)


def direction(found: Any) -> Direction | None:
    """Where a swipe scrolls to. The files name a vertical one by the scroll and a sideways one by the finger."""
    if found is None:
        return None
    if found not in OPPOSITE:
        raise ValueError(f"direction {found!r} is none of {', '.join(OPPOSITE)}")
    side: Direction = found
    return OPPOSITE[side] if side in ("left", "right") else side


def action(a: Mapping[str, Any], width: int, height: int, convention: str) -> Action:
    """The typed action; points in fractions. ValueError on an argument that cannot be."""

    def point(key: str) -> tuple[float, float]:
        x, y = a[key]
        if not (0 <= x <= width and 0 <= y <= height):
            raise ValueError(f"{a['action']} at {a[key]} is outside a screen of {width} x {height}")
        return float(x) / width, float(y) / height

    kind = a["action"]
    if kind == "click":
        return Click(*point("coordinate"))
    if kind == "long_press":
        return LongPress(*point("coordinate"), seconds=float(a.get("time", 1.0)))
    if kind == "swipe":
        start, end = point("coordinate"), point("coordinate2")
        return Drag(*end, *start) if convention == "scroll" else Drag(*start, *end)
    if kind == "system_button":
        if str(a["button"]).lower() not in BUTTONS:
            raise ValueError(f"system_button {a['button']!r} is none of {', '.join(BUTTONS)}")
        return BUTTONS[a["button"].lower()]
    if kind == "terminate":
        if a["status"] not in ("success", "failure"):
            raise ValueError(f"terminate status {a['status']!r}")
        return Finish(a["status"])
    if kind == "wait":
        return Wait(float(a.get("time", 1.0)))
    if kind == "key":
        return Key((a["text"],))
    text: dict[str, Callable[[str], Action]] = {"type": Type, "answer": Answer, "open": Open}
    return text[kind](a["text"])
