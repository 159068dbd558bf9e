r"""openadapt's DSL and its JSON variant.

    Thought: The menu is in the corner.          Thought: The menu is in the corner.
    Action: CLICK(x=0.475, y=0.250)              Action: {"action_type": "click", "coordinate": [0.475, 0.25]}

Coordinates are fractions of the screen, three decimals written (the reference writes two, ten pixels of 1920 apart);
the JSON may give pixels instead, above 1 or with `coordinate_mode` pixel, once the codec is bound with `at`. Both
codecs read both forms, each writes its own. Strings know the escapes `\\`, `\"`, `\'` and, added for what no text may
hold, `\uXXXX`; any other backslash stands for itself and a newline is written as one. SCROLL turns the wheel five
notches up or down; SCROLL and KEY are of the evaluation package, in JSON an addition. WAIT is one second.

Not expressible: Open, Answer, Nav, Drag, Move, LongPress, Finish("failure"), other scrolls and waits, clicks other than
one with the left button.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from guiderail.actions import prompts_desktop
from guiderail.actions.bounds import chord, read_chord
from guiderail.actions.calls import Strings, Types, read_call
from guiderail.actions.family import FamilyCodec, direction, scrolled, take_fence, take_labelled
from guiderail.actions.grid import UNKNOWN_SCREEN, Grid, plain, screen
from guiderail.actions.jsontext import Fields, dumps, pair, string, take_fields, take_object
from guiderail.actions.text import clip, u4, write_thought
from guiderail.actions.types import Action, Click, Finish, Key, Scroll, Type, Wait

_XY: dict[str, type] = {"x": float, "y": float}
CALLS: dict[str, tuple[Types, Types]] = {
    "CLICK": (_XY, {}),
    "TYPE": ({"text": str}, {}),
    "KEY": ({"key": str}, {}),
    "SCROLL": (_XY | {"direction": str}, {}),
    "WAIT": ({}, {}),
    "DONE": ({}, {}),
}
_MODES = ("coordinate_mode", "coordinate_space")
OBJECTS: Fields = {
    "click": ((), ("coordinate", "coords", *_MODES)),
    "type": (("text",), ()),
    "key": (("key",), ()),
    "scroll": (("direction",), ("coordinate", "coords", *_MODES)),
    "wait": ((), ()),
    "done": ((), ()),
}
_STRINGS = Strings({"\\": "\\", '"': '"', "'": "'"}, loose=True)
_UNSAFE = re.compile(r"[\ud800-\udfff]|<(?=\||/?tool_call)")
_LABEL = "action"


@dataclass(frozen=True)
class OpenAdaptCodec(FamilyCodec):
    """The DSL; see the module docstring."""

    name: ClassVar[str] = "openadapt"
    prompts: ClassVar[tuple[str, str]] = prompts_desktop.OPENADAPT
    screen: Grid = UNKNOWN_SCREEN

    def at(self, width: int, height: int) -> Self:
        """The codec that also reads pixels of a frame of width x height. Raises ValueError on an empty frame."""
        return replace(self, screen=screen(width, height))

    def _split(self, text: str) -> tuple[str, Any]:
        thought, call = take_labelled(text, "thought", _LABEL)
        return thought, take_fence(call)

    def _join(self, thought: str, call: str) -> str:
        line = f"Thought: {write_thought(thought)}\n" if thought else ""
        return f"{line}Action: {call}"

    def _read(self, call: str) -> Action:
        if call.lstrip().startswith("{"):
            name, a = take_fields(take_object(call, "action")[1], "action_type", OBJECTS, str.lower)
            if name in ("click", "scroll"):
                a["x"], a["y"] = self._point(a)
        else:
            name, a = read_call(call, CALLS, strings=_STRINGS)
        match name.upper():
            case "CLICK":
                return Click(a["x"], a["y"])
            case "SCROLL":
                return _vertical(scrolled(a["direction"], a["x"], a["y"]))
            case "TYPE":
                return Type(string(a["text"], "text"))
            case "KEY":
                return Key(read_chord(string(a["key"], "key")))
        return Wait(1.0) if name.upper() == "WAIT" else Finish("success")

    def _point(self, a: dict[str, Any]) -> tuple[float, float]:
        """The point of a JSON action, in fractions. Raises ValueError."""
        given = [k for k in ("coordinate", "coords") if k in a]
        if len(given) != 1 or all(mode in a for mode in _MODES):
            raise ValueError("an action at a point needs one coordinate, and at most one unit for it")
        x, y = pair(a[given[0]], given[0])
        mode = next((string(a[m], m) for m in _MODES if m in a), "pixel" if min(x, y) > 1 else "normalized")
        if mode in ("pixel", "pixels"):
            return self.screen.read(a[given[0]], given[0])
        if mode != "normalized":
            raise ValueError(f"the unit of {given[0]} is normalized or pixel, got {clip(mode)}")
        return x, y

    def _write(self, action: Action) -> str:
        name, arguments = self._fields(action)
        texts = [f"{k}={v:.3f}" if isinstance(v, float) else f'{k}="{_escaped(v)}"' for k, v in arguments.items()]
        return f"{name}({', '.join(texts)})"

    def _fields(self, action: Action) -> tuple[str, dict[str, Any]]:
        match action:
            case Click(x, y, "left", 1):
                return "CLICK", {"x": x, "y": y}
            case Scroll(x, y, 0) if way := direction(action):
                return "SCROLL", {"x": x, "y": y, "direction": way}
            case Type(text):
                return "TYPE", {"text": text}
            case Key(names):
                return "KEY", {"key": chord(names)}
            case Wait(1.0):
                return "WAIT", {}
            case Finish("success"):
                return "DONE", {}
        raise self._refuse(action, f"none of {', '.join(CALLS)} means it exactly")


class OpenAdaptJsonCodec(OpenAdaptCodec):
    """The JSON variant; see the module docstring."""

    name: ClassVar[str] = "openadapt_json"
    prompts: ClassVar[tuple[str, str]] = prompts_desktop.OPENADAPT_JSON

    def _write(self, action: Action) -> str:
        name, a = self._fields(action)
        point = {"coordinate": [plain(a.pop("x")), plain(a.pop("y"))]} if "x" in a else {}
        return dumps({"action_type": name.lower(), **point, **a})


def _vertical(scroll: Scroll) -> Scroll:
    if scroll.dx:
        raise ValueError("direction must be up or down")
    return scroll


def _escaped(text: str) -> str:
    text = text.replace("\\", r"\\").replace('"', r"\"")
    return _UNSAFE.sub(lambda m: u4(m[0]), text)
