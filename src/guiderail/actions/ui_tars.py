r"""UI-TARS' calls: `Thought: ...`, then `Action: click(start_box='(475,250)')`.

Two conventions of coordinates, two codecs: `ui_tars` for the first models, from Qwen2-VL, and those behind the
`<point>x y</point>` prompts, thousandths of the screen from 0 to 1000; `ui_tars15` for UI-TARS-1.5, from Qwen2.5-VL,
absolute pixels of the frame as the model sees it (bind it with `at`). Points are read as (x,y), [x,y] or
`<point>x y</point>`, with or without box tokens, under the names start_box, start_point or point (end_box, end_point);
a box of four numbers, whatever the order of its corners, is its middle.

`scroll` turns the wheel five notches so that more is seen on the side of its direction (down shows what lies below; no
point: the centre); with an end point it is a Drag. `wait` is five seconds. `hotkey` separates keys by spaces.
`long_press` takes `time` in milliseconds, one second when absent. `finished` is success and its content a remark, not
kept; `call_user` gives the task up. Strings are Python's; an apostrophe that is not escaped is read as one.

Not expressible: Answer, Nav("recent") and Nav("menu"), other scrolls and waits, middle clicks and triple clicks, key
names with white space in them.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from guiderail.actions import prompts_phone
from guiderail.actions.calls import LOOSE, Types, quoted, read_call
from guiderail.actions.family import FamilyCodec, PixelCodec, direction, scrolled, take_fence, take_labelled
from guiderail.actions.text import clip, write_thought
from guiderail.actions.types import Action, Click, Drag, Finish, Key, LongPress, Move, Nav, Open, Scroll, Type, Wait

WAIT_S = 5.0
_AT: dict[str, type] = {"start_box": str}
_TO: dict[str, type] = {"end_box": str}
CALLS: dict[str, tuple[Types, Types]] = {
    "click": (_AT, {}),
    "left_single": (_AT, {}),
    "left_double": (_AT, {}),
    "right_single": (_AT, {}),
    "hover": (_AT, {}),
    "long_press": (_AT, {"time": str}),
    "drag": (_AT | _TO, {}),
    "scroll": ({}, _AT | _TO | {"direction": str}),
    "type": ({"content": str}, {}),
    "hotkey": ({"key": str}, {}),
    "open_app": ({"app_name": str}, {}),
    "press_home": ({}, {}),
    "press_back": ({}, {}),
    "wait": ({}, {}),
    "finished": ({}, {"content": str}),
    "call_user": ({}, {}),
}
_PLAIN: dict[str, Action] = {
    "press_home": Nav("home"),
    "press_back": Nav("back"),
    "wait": Wait(WAIT_S),
    "finished": Finish("success"),
    "call_user": Finish("failure"),
}
_POINT_NAME = re.compile(r"\b(?:(start|end)_point|point)(?=\s*=\s*['\"])")
_BOX_TOKEN = re.compile(r"<\|box_(?:start|end)\|>|</?(?:point|bbox)>")
_POINT = re.compile(r"[(\[]?\s*(-?[0-9.]+(?:[\s,]+-?[0-9.]+)+)\s*[)\]]?")
_LABEL = "action"


class UITarsCodec(FamilyCodec):
    """Thousandths of the screen; see the module docstring."""

    name: ClassVar[str] = "ui_tars"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.UI_TARS

    def _split(self, text: str) -> tuple[str, Any]:
        thought, call = take_labelled(text, "thought", _LABEL)
        return thought, take_fence(call)

    def _join(self, thought: str, call: str) -> str:
        line = f"Thought: {write_thought(thought)}\n" if thought else ""
        return f"{line}Action: {call}"

    def _read(self, call: Any) -> Action:
        name, a = read_call(_with_boxes(call), CALLS, str.lower, LOOSE)
        match name:
            case "click" | "left_single" | "left_double":
                return Click(*self._point(a["start_box"]), count=2 if name == "left_double" else 1)
            case "right_single":
                return Click(*self._point(a["start_box"]), "right")
            case "hover":
                return Move(*self._point(a["start_box"]))
            case "long_press":
                return LongPress(*self._point(a["start_box"]), _seconds(a.get("time", "")))
            case "drag":
                return Drag(*self._point(a["start_box"]), *self._point(a["end_box"]))
            case "scroll":
                return self._scroll(a)
            case "type":
                return Type(a["content"])
            case "hotkey":
                return Key(tuple(a["key"].split()))
            case "open_app":
                return Open(a["app_name"])
        return _PLAIN[name]

    def _scroll(self, a: dict[str, str]) -> Action:
        if "end_box" in a and "start_box" in a:
            return Drag(*self._point(a["start_box"]), *self._point(a["end_box"]))
        if "end_box" in a:
            raise ValueError("scroll has an end but no start")
        x, y = self._point(a["start_box"]) if "start_box" in a else (0.5, 0.5)
        return scrolled(a.get("direction"), x, y)

    def _point(self, text: str) -> tuple[float, float]:
        m = _POINT.fullmatch(_BOX_TOKEN.sub("", text).strip())
        try:
            numbers = [float(n) for n in re.split(r"[\s,]+", m[1])] if m else []
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 4):
            raise ValueError(f"a point must be (x,y), got {clip(text)}")
        x, y = numbers[:2] if len(numbers) == 2 else [(numbers[i] + numbers[i + 2]) / 2 for i in (0, 1)]
        return self.grid.read([x, y], "point")

    def _write(self, action: Action) -> str:
        match action:
            case Click(x, y, "left", 1 | 2 as count):
                return f"{'click' if count == 1 else 'left_double'}({self._at('start', x, y)})"
            case Click(x, y, "right", 1):
                return f"right_single({self._at('start', x, y)})"
            case Move(x, y):
                return f"hover({self._at('start', x, y)})"
            case LongPress(x, y, seconds):
                time = "" if seconds == 1.0 else f", time='{round(seconds * 1000)}'"
                return f"long_press({self._at('start', x, y)}{time})"
            case Drag(x, y, x2, y2):
                return f"drag({self._at('start', x, y)}, {self._at('end', x2, y2)})"
            case Scroll(x, y) if way := direction(action):
                return f"scroll({self._at('start', x, y)}, direction='{way}')"
            case Type(text):
                return f"type(content={quoted(text, chr(39))})"
            case Key(names) if not any(re.search(r"\s", name) for name in names):
                return f"hotkey(key={quoted(' '.join(names), chr(39))})"
            case Key():
                raise self._refuse(action, "its keys are separated by spaces")
            case Open(app):
                return f"open_app(app_name={quoted(app, chr(39))})"
        for name, meant in _PLAIN.items():
            if action == meant:
                return f"{name}()"
        raise self._refuse(action, f"none of {', '.join(CALLS)} means it exactly")

    def _at(self, which: str, x: float, y: float) -> str:
        px, py = self.grid.write(x, y)
        return f"{which}_box='({px},{py})'"


class UITars15Codec(UITarsCodec, PixelCodec):
    """Absolute pixels; see the module docstring."""

    name: ClassVar[str] = "ui_tars15"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.UI_TARS15


def _with_boxes(call: str) -> str:
    """The call with the point arguments of later prompts under their first names; calls without a point untouched."""
    if not re.match(r"\s*(?:click|left_\w+|right_\w+|hover|long_press|drag|scroll)\b", call, re.IGNORECASE):
        return call
    return _POINT_NAME.sub(lambda m: f"{m[1] or 'start'}_box", call)


def _seconds(time: str) -> float:
    """Seconds of a `time` in milliseconds; one when empty."""
    if not time.strip():
        return 1.0
    if not re.fullmatch(r"[0-9]{1,9}", time.strip()):
        raise ValueError(f"time must be whole milliseconds, got {clip(time)}")
    return int(time) / 1000
