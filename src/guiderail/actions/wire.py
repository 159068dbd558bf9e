"""Actions as canonical JSON, for the env pool's wire, for demonstrations and for step records.

Guarantees: `action_from_json` gives back every action with finite numbers that `action_to_json` or `action_dumps`
wrote; equal actions give equal text (kind first, then the order of the fields, no spaces); anything else (unknown
kind, unknown or missing field, wrong type, NaN) is a ValueError that names it. Points outside [0, 1] are kept: pixel
mapping clamps them (`to_pixel`), so that a model's odd number is an action, never a lost episode. This is no model's
text format: see the codecs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

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

KINDS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Click, Move, LongPress, Drag, Scroll, Type, Key, Wait, Open, Answer, Nav, Finish)
}
MAX_TEXT = 100_000


def _number(v: Any) -> float:
    if isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v):
        raise ValueError("must be a finite number")
    return float(v) + 0.0  # -0.0 becomes 0.0: one text for equal numbers


def _integer(v: Any) -> int:
    if isinstance(v, bool) or not isinstance(v, int) or abs(v) > 1_000_000:
        raise ValueError("must be an integer of sane size")
    return v


def _text(v: Any) -> str:
    if not isinstance(v, str) or len(v) > MAX_TEXT:
        raise ValueError(f"must be a string of at most {MAX_TEXT} characters")
    return v


def _keys(v: Any) -> tuple[str, ...]:
    if not isinstance(v, list | tuple) or not v or len(v) > 16:
        raise ValueError("must be a list of 1 to 16 key names")
    return tuple(_text(k) for k in v)


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def check(v: Any) -> str:
        if not isinstance(v, str) or v not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return v

    return check


def _checks(kind: str) -> dict[str, Callable[[Any], Any]]:
    point: dict[str, Callable[[Any], Any]] = {"x": _number, "y": _number}
    table: dict[str, dict[str, Callable[[Any], Any]]] = {
        "Click": {**point, "button": _one_of("left", "right", "middle"), "count": _integer},
        "Move": point,
        "LongPress": {**point, "seconds": _number},
        "Drag": {**point, "x2": _number, "y2": _number},
        "Scroll": {**point, "dx": _integer, "dy": _integer},
        "Type": {"text": _text},
        "Key": {"keys": _keys},
        "Wait": {"seconds": _number},
        "Open": {"app": _text},
        "Answer": {"text": _text},
        "Nav": {"button": _one_of("back", "home", "recent", "menu")},
        "Finish": {"status": _one_of("success", "failure")},
    }
    return table[kind]


_CHECKS = {kind: _checks(kind) for kind in KINDS}


def _checked(kind: str, name: str, value: Any) -> Any:
    try:
        return _CHECKS[kind][name](value)
    except ValueError as e:
        raise ValueError(f"{kind}.{name} {e}, got {str(value)[:80]!r}") from None


def action_to_json(action: Action) -> dict[str, Any]:
    """Plain dict {"kind": ..., fields...} in field order; keys of a Key action as a list. ValueError on a bad field."""
    kind = type(action).__name__
    out: dict[str, Any] = {"kind": kind}
    for f in fields(action):
        value = _checked(kind, f.name, getattr(action, f.name))
        out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def action_from_json(data: Any) -> Action:
    """Inverse of `action_to_json` and `action_dumps` (an object or its text). Fields with a default may be left out.

    Raises ValueError naming what is wrong.
    """
    if isinstance(data, str | bytes):
        data = json.loads(data)
    if not isinstance(data, Mapping):
        raise ValueError(f"an action is a JSON object, not {type(data).__name__}")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"unknown action kind {kind!r}; known: {', '.join(KINDS)}")
    cls, checks = KINDS[kind], _CHECKS[kind]
    unknown = sorted(str(k) for k in data if k != "kind" and k not in checks)
    if unknown:
        raise ValueError(f"{kind}: unknown field {', '.join(unknown)}; known: {', '.join(checks)}")
    values: dict[str, Any] = {}
    for f in fields(cls):
        if f.name in data:
            values[f.name] = _checked(kind, f.name, data[f.name])
        elif f.default is MISSING:
            raise ValueError(f"{kind}: field {f.name} is missing")
    action: Action = cls(**values)
    return action


def action_dumps(action: Action) -> str:
    """Canonical text: equal actions give equal text. Raises ValueError on NaN or infinity."""
    return json.dumps(action_to_json(action), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
