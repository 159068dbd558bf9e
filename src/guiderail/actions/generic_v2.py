r"""MobileGym's `generic_v2` agent: a THINK block, then one JSON action in an ANSWER block.

    <THINK>
    Open the menu
    </THINK>
    <ANSWER>
    {"action": "CLICK", "point": [475, 250]}
    </ANSWER>

Coordinates are numbers from 0 to 1000, thousandths of the screen. Tags and names are read in any case, with the
family's other spellings (TAP, LONG_PRESS, SLIDE, LAUNCH, FINISH); a bare object or one in a code fence is read too.
SWIPE and DRAG are both read as Drag, what the finger does; SWIPE is written. WAIT is in seconds. AWAKE opens an app.
What COMPLETE returns and why ABORT gives up are remarks, not kept. TYPE with a point, or with clear, which are several
actions in one, is refused. A long press is one second.

Not expressible: Move, Scroll (a wheel), Nav("menu"), keys but enter, other presses, clicks with another button or
three of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from guiderail.actions import prompts_phone
from guiderail.actions.family import FamilyCodec
from guiderail.actions.grid import plain
from guiderail.actions.jsontext import Fields, dumps, number, string, take_block, take_fields, take_object
from guiderail.actions.text import read_thought, take_think, write_think
from guiderail.actions.types import Action, Answer, Click, Drag, Finish, Key, LongPress, Nav, Open, Type, Wait

ACTIONS: Fields = {
    "CLICK": (("point",), ()),
    "DOUBLE_TAP": (("point",), ()),
    "LONGPRESS": (("point",), ()),
    "TYPE": (("value",), ("point", "clear")),
    "SWIPE": (("point1", "point2"), ()),
    "DRAG": (("point1", "point2"), ()),
    "BACK": ((), ()),
    "HOME": ((), ()),
    "RECENT": ((), ()),
    "ENTER": ((), ()),
    "WAIT": ((), ("value",)),
    "AWAKE": (("value",), ()),
    "ANSWER": (("value",), ()),
    "COMPLETE": ((), ("return",)),
    "ABORT": ((), ("value",)),
}
_NAMES = {
    "TAP": "CLICK",
    "DOUBLETAP": "DOUBLE_TAP",
    "LONG_PRESS": "LONGPRESS",
    "SLIDE": "SWIPE",
    "LAUNCH": "AWAKE",
    "FINISH": "COMPLETE",
}
_PLAIN: dict[str, Action] = {
    "BACK": Nav("back"),
    "HOME": Nav("home"),
    "RECENT": Nav("recent"),
    "ENTER": Key(("enter",)),
    "COMPLETE": Finish("success"),
    "ABORT": Finish("failure"),
}


def _fold(name: str) -> str:
    name = name.strip().upper()
    return _NAMES.get(name, name)


class GenericV2Codec(FamilyCodec):
    """See the module docstring."""

    name: ClassVar[str] = "generic_v2"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.GENERIC_V2

    def _split(self, text: str) -> tuple[str, Any]:
        think, rest = take_think(text)
        if "<answer>" in rest.lower():
            before, call = take_block(rest, "ANSWER", "answer", ignore_case=True)
        else:
            before, call = take_object(rest, "answer")
        return read_thought(think) or read_thought(before), call

    def _join(self, thought: str, call: str) -> str:
        think = write_think(thought, "THINK") + "\n" if thought else ""
        return f"{think}<ANSWER>\n{call}\n</ANSWER>"

    def _read(self, call: Any) -> Action:
        name, a = take_fields(call, "action", ACTIONS, _fold)
        match name:
            case "CLICK" | "DOUBLE_TAP":
                return Click(*self.grid.read(a["point"], "point"), count=1 if name == "CLICK" else 2)
            case "LONGPRESS":
                return LongPress(*self.grid.read(a["point"], "point"), 1.0)
            case "SWIPE" | "DRAG":
                return Drag(*self.grid.read(a["point1"], "point1"), *self.grid.read(a["point2"], "point2"))
            case "TYPE":
                if a.get("point") is not None or a.get("clear", False) is not False:
                    raise ValueError("TYPE with a point or with clear is several actions; write exactly one")
                return Type(string(a["value"], "value"))
            case "WAIT":
                return Wait(number(a.get("value", 1), "value"))
            case "AWAKE":
                return Open(string(a["value"], "value"))
            case "ANSWER":
                return Answer(string(a["value"], "value"))
        return _PLAIN[name]

    def _write(self, action: Action) -> str:
        name, arguments = self._fields(action)
        return dumps({"action": name, **arguments})

    def _fields(self, action: Action) -> tuple[str, dict[str, Any]]:
        at = self.grid.write
        match action:
            case Click(x, y, "left", 1 | 2 as count):
                return "CLICK" if count == 1 else "DOUBLE_TAP", {"point": at(x, y)}
            case LongPress(x, y, 1.0):
                return "LONGPRESS", {"point": at(x, y)}
            case Drag(x, y, x2, y2):
                return "SWIPE", {"point1": at(x, y), "point2": at(x2, y2)}
            case Type(text):
                return "TYPE", {"value": text}
            case Wait(seconds):
                return "WAIT", {"value": plain(seconds)}
            case Open(app):
                return "AWAKE", {"value": app}
            case Answer(text):
                return "ANSWER", {"value": text}
        for name, meant in _PLAIN.items():
            if action == meant:
                return name, {}
        raise self._refuse(action, f"{action} is none of {', '.join(ACTIONS)}")
