"""Ranges that every codec holds actions to, and how key chords are written as one string.

Guarantees: `checked(a)` returns a valid action (points and numbers finite and in range, text well formed, key names in
normal form) or raises ValueError saying which value is wrong; `read_chord(chord(keys)) == keys` for normal key names.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from guiderail.actions.text import well_formed
from guiderail.actions.types import (
    Action,
    Answer,
    Click,
    Drag,
    Finish,
    Key,
    LongPress,
    Move,
    Nav,
    Open,
    Scroll,
    Type,
    Wait,
)
from guiderail.actions.wire import MAX_TEXT

RESOLUTION = 1000
MAX_COUNT = 3
MAX_NOTCHES = 10_000
MAX_SECONDS = 600.0
MAX_KEYS = 16
BUTTONS = ("left", "right", "middle")
NAV_BUTTONS = ("back", "home", "recent", "menu")
STATUSES = ("success", "failure")
_UPPER = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}
_CHORD_PART = re.compile(r"(?:\\.|[^+\\]|\\\Z)+|\+", re.DOTALL)


def number(name: str, value: float, low: float, high: float) -> float:
    """`value` when finite and in [low, high]; else ValueError naming it."""
    if value != value or value in (math.inf, -math.inf):
        raise ValueError(f"{name} is not a finite number")
    if not low <= value <= high:
        raise ValueError(f"{name}={ascii(value)[:24]} is outside [{low:g}, {high:g}]")
    return value


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """`value` when allowed; else ValueError naming the choices."""
    if value not in allowed:
        raise ValueError(f"{name}={ascii(value)[:40]} is not one of {', '.join(allowed)}")
    return value


def content(name: str, value: str) -> str:
    """`value` well formed; ValueError when it is longer than the env pool carries."""
    if len(value) > MAX_TEXT:
        raise ValueError(f"{name} has {len(value)} characters; at most {MAX_TEXT} are carried")
    return well_formed(value)


def normal_key(name: str) -> str:
    """Normal form of a key name: no outer white space, lower-case unless it is one character, " " is "space"."""
    if name == " ":
        return "space"
    name = well_formed(name).strip()
    return name.translate(_UPPER) if len(name) > 1 else name


def quantise(action: Action) -> Action:
    """`checked(action)` with points and seconds rounded to multiples of 1/RESOLUTION. Idempotent."""
    action = checked(action)
    fine = {f: getattr(action, f) for f in ("x", "y", "x2", "y2", "seconds") if hasattr(action, f)}
    return replace(action, **{f: round(v * RESOLUTION) / RESOLUTION for f, v in fine.items()})


def checked(action: Action) -> Action:
    """The action with texts and key names in normal form and no -0.0.

    Raises ValueError on values outside the algebra and TypeError on something that is no action.
    """

    def point(name: str, value: float) -> float:
        return number(name, value, 0.0, 1.0) + 0.0  # + 0.0 turns -0.0 into 0.0

    match action:
        case Click(x, y, button, count):
            choice("button", button, BUTTONS)
            number("count", count, 1, MAX_COUNT)
            return replace(action, x=point("x", x), y=point("y", y), count=int(count))
        case Move(x, y):
            return Move(point("x", x), point("y", y))
        case LongPress(x, y, seconds):
            return LongPress(point("x", x), point("y", y), number("seconds", seconds, 0.0, MAX_SECONDS) + 0.0)
        case Drag(x, y, x2, y2):
            return Drag(point("x", x), point("y", y), point("x2", x2), point("y2", y2))
        case Scroll(x, y, dx, dy):
            for name, value in (("dx", dx), ("dy", dy)):
                number(name, value, -MAX_NOTCHES, MAX_NOTCHES)
            return Scroll(point("x", x), point("y", y), int(dx), int(dy))
        case Type(text):
            return Type(content("text", text))
        case Key(keys):
            names = tuple(normal_key(k) for k in keys)
            if not names or "" in names:
                raise ValueError("keys names no key")
            if len(names) > MAX_KEYS:
                raise ValueError(f"{len(names)} keys at once; at most {MAX_KEYS} are carried")
            return Key(names)
        case Wait(seconds):
            return Wait(number("seconds", seconds, 0.0, MAX_SECONDS) + 0.0)
        case Open(app):
            return Open(content("app", app))
        case Answer(text):
            return Answer(content("text", text))
        case Nav(button):
            choice("button", button, NAV_BUTTONS)
            return action
        case Finish(status):
            choice("status", status, STATUSES)
            return action
    raise TypeError(f"{type(action).__name__} is not an action")


def chord(keys: tuple[str, ...]) -> str:
    r"""`("ctrl", "a")` -> `ctrl+a`; the plus key is `+`; a plus or backslash inside a longer name is `\+`, `\\`."""
    return "+".join(k if k == "+" else k.replace("\\", r"\\").replace("+", r"\+") for k in keys)


def read_chord(text: str) -> tuple[str, ...]:
    r"""Inverse of `chord`; a plus where a name is due is the plus key (`ctrl++`). Raises ValueError when one lacks."""
    names: list[str] = []
    due = True
    for part in _CHORD_PART.findall(text):
        if part == "+" and not due:
            due = True
        else:
            names.append(normal_key(re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL)))
            due = False
    if due or "" in names:
        raise ValueError(f"keys={ascii(text)[:40]} lacks a key name" if text else "keys names no key")
    return tuple(names)
