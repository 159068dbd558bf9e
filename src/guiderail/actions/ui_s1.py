r"""UI-S1's flat JSON and Qwen2.5-VL's `mobile_use` tool call: one action space in two envelopes.

    <think>                                       Action: Open the menu
    Open the menu                                 <tool_call>
    </think>                                      {"name": "mobile_use", "arguments": {"action": "click", ...}}
    <action>                                      </tool_call>
    {"action": "click", "coordinate": [540, 600]}
    </action>

Coordinates are absolute pixels of the frame as the model sees it, after the processor's resize: bind the codec to that
size with `at`. A swipe is what the finger does, from `coordinate` to `coordinate2`, and is read as Drag: a swipe up
shows what lies below. `time` is in seconds. `system_button` Enter is the enter key; `key` names one key or a chord
(`ctrl+a`). UI-S1 reads either envelope, qwen25vl only its own; UI-S1 writes its own.

Not expressible: Move, Scroll (a wheel), clicks other than one with the left button, Nav("recent").
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from guiderail.actions import prompts_phone
from guiderail.actions.bounds import chord
from guiderail.actions.family import PixelCodec
from guiderail.actions.grid import plain
from guiderail.actions.jsontext import Fields, dumps, keys, number, quote, string, take_block, take_fields
from guiderail.actions.text import Unreadable, read_thought, take_think, write_think, write_thought
from guiderail.actions.types import Action, Answer, Click, Drag, Finish, Key, LongPress, Nav, Open, Type, Wait

ACTIONS: Fields = {
    "click": (("coordinate",), ()),
    "long_press": (("coordinate",), ("time",)),
    "swipe": (("coordinate", "coordinate2"), ()),
    "type": (("text",), ()),
    "key": (("text",), ()),
    "system_button": (("button",), ()),
    "open": (("text",), ()),
    "wait": ((), ("time",)),
    "answer": (("text",), ()),
    "terminate": (("status",), ()),
}
_ACTION_LINE = re.compile(r"^[ \t]*action:[ \t]*(.*)", re.IGNORECASE | re.MULTILINE)


class UIS1Codec(PixelCodec):
    """Think and action tags around flat JSON; see the module docstring."""

    name: ClassVar[str] = "ui_s1"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.UI_S1

    def _split(self, text: str) -> tuple[str, Any]:
        think, rest = take_think(text)
        if "<action>" not in rest and "<tool_call>" in rest:
            return _tool_call(text)
        before, call = take_block(rest, "action", "action")
        return read_thought(think) or read_thought(before), call

    def _join(self, thought: str, call: str) -> str:
        think = write_think(thought) + "\n" if thought else ""
        return f"{think}<action>\n{call}\n</action>"

    def _read(self, call: Any) -> Action:
        name, a = take_fields(call, "action", ACTIONS)
        match name:
            case "click":
                return Click(*self.grid.read(a["coordinate"], "coordinate"))
            case "long_press":
                x, y = self.grid.read(a["coordinate"], "coordinate")
                return LongPress(x, y, number(a.get("time", 1), "time"))
            case "swipe":
                start, end = (self.grid.read(a[k], k) for k in ("coordinate", "coordinate2"))
                return Drag(*start, *end)
            case "wait":
                return Wait(number(a.get("time", 1), "time"))
            case "key":
                return Key(keys(string(a["text"], "text")))
            case "system_button":
                button = string(a["button"], "button").lower()
                if button == "enter":
                    return Key(("enter",))
                if button not in ("back", "home", "menu"):
                    raise ValueError(f"button {quote(button)} is not one of Back, Home, Menu, Enter")
                return Nav(button)  # type: ignore[arg-type]
            case "terminate":
                return Finish(string(a["status"], "status"))  # type: ignore[arg-type]
        text = string(a["text"], "text")
        if name == "type":
            return Type(text)
        return Open(text) if name == "open" else Answer(text)

    def _write(self, action: Action) -> str:
        return dumps(self._fields(action))

    def _fields(self, action: Action) -> dict[str, Any]:
        at = self.grid.write
        match action:
            case Click(x, y, "left", 1):
                return {"action": "click", "coordinate": at(x, y)}
            case Click():
                raise self._refuse(action, "it has one click, with the finger")
            case LongPress(x, y, seconds):
                return {"action": "long_press", "coordinate": at(x, y), "time": plain(seconds)}
            case Drag(x, y, x2, y2):
                return {"action": "swipe", "coordinate": at(x, y), "coordinate2": at(x2, y2)}
            case Type(text):
                return {"action": "type", "text": text}
            case Key(("enter",)):
                return {"action": "system_button", "button": "Enter"}
            case Key(names):
                return {"action": "key", "text": chord(names)}
            case Wait(seconds):
                return {"action": "wait", "time": plain(seconds)}
            case Open(app):
                return {"action": "open", "text": app}
            case Answer(text):
                return {"action": "answer", "text": text}
            case Nav("back" | "home" | "menu" as button):
                return {"action": "system_button", "button": button.capitalize()}
            case Finish(status):
                return {"action": "terminate", "status": status}
        raise self._refuse(action, f"it has only {', '.join(ACTIONS)}")


class Qwen25VLCodec(UIS1Codec):
    """The same actions as arguments of Qwen2.5-VL's `mobile_use` function."""

    name: ClassVar[str] = "qwen25vl"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.QWEN25VL

    def _split(self, text: str) -> tuple[str, Any]:
        return _tool_call(text)

    def _join(self, thought: str, call: str) -> str:
        line = f"Action: {write_thought(thought)}\n" if thought else ""
        return f'{line}<tool_call>\n{{"name": "mobile_use", "arguments": {call}}}\n</tool_call>'


def _tool_call(text: str) -> tuple[str, Any]:
    """(thought, arguments) of the text's one `mobile_use` call. Raises Unreadable."""
    think, rest = take_think(text)
    before, call = take_block(rest, "tool_call", "tool call")
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        raise Unreadable('The tool call must be an object with exactly "name" and "arguments".')
    if call["name"] != "mobile_use":
        raise Unreadable(f"Unknown function {quote(call['name'])}; the only one is mobile_use.")
    lines = _ACTION_LINE.findall(before)
    return read_thought(lines[-1] if lines else before) or read_thought(think), call["arguments"]
