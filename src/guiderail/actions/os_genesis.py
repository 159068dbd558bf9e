r"""OS-Genesis' answers: a low-level thought, then AndroidWorld's JSON action.

    Low-level thought: Open the menu
    action: {"action_type": "click", "x": 475, "y": 250}

Coordinates are thousandths of the screen from 0 to 1000, as the AndroidControl checkpoints (OS-Genesis-*-AC) are used;
the AndroidWorld checkpoints write pixels of a 1080x2400 screen and are not read by this codec. A scroll has a direction
only, that of what is to be seen (down shows what lies below), and is read as five notches at the centre of the screen.
A wait is one second, a long press one second. `type` with a point, which is a tap and typing in one, is refused.

Not expressible: Drag, Move, keys but enter, Nav("recent") and Nav("menu"), other scrolls, waits and presses, clicks
other than one with the left button.
"""

from __future__ import annotations

from typing import Any, ClassVar

from guiderail.actions import prompts_phone
from guiderail.actions.family import FamilyCodec, direction, labelled_thought, scrolled, take_labelled
from guiderail.actions.jsontext import Fields, dumps, quote, string, take_fields, take_object
from guiderail.actions.text import Unreadable, clip
from guiderail.actions.types import Action, Answer, Click, Finish, Key, LongPress, Nav, Open, Scroll, Type, Wait

ACTIONS: Fields = {
    "click": (("x", "y"), ()),
    "long_press": (("x", "y"), ()),
    "scroll": (("direction",), ()),
    "type": (("text",), ()),
    "open_app": (("app_name",), ()),
    "navigate_back": ((), ()),
    "navigate_home": ((), ()),
    "keyboard_enter": ((), ()),
    "wait": ((), ()),
    "answer": (("text",), ()),
    "status": (("goal_status",), ()),
}
_PLAIN: dict[str, Action] = {
    "navigate_back": Nav("back"),
    "navigate_home": Nav("home"),
    "keyboard_enter": Key(("enter",)),
    "wait": Wait(1.0),
}
_STATUS: dict[str, Action] = {
    "successful": Finish("success"),
    "infeasible": Finish("failure"),
    "complete": Finish("success"),
}
_LABEL = "action"


class OSGenesisCodec(FamilyCodec):
    """See the module docstring."""

    name: ClassVar[str] = "os_genesis"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.OS_GENESIS

    def _split(self, text: str) -> tuple[str, Any]:
        thought, rest = take_labelled(text, "low-level thought", _LABEL)
        before, call = take_object(rest, "action")
        if before.strip() and thought:
            raise Unreadable(f"Text before the JSON object: {clip(before.strip())}.")
        return thought or before.strip(), call

    def _join(self, thought: str, call: str) -> str:
        line = f"Low-level thought: {labelled_thought(thought, _LABEL)}\n" if thought else ""
        return f"{line}action: {call}"

    def _read(self, call: Any) -> Action:
        name, a = take_fields(call, "action_type", ACTIONS)
        if name in ("click", "long_press"):
            x, y = self.grid.read([a["x"], a["y"]], "point")
            return Click(x, y) if name == "click" else LongPress(x, y, 1.0)
        if name == "scroll":
            return scrolled(a["direction"])
        if name == "status":
            status = string(a["goal_status"], "goal_status")
            if status not in _STATUS:
                raise ValueError(f"goal_status {quote(status)} is not successful or infeasible")
            return _STATUS[status]
        if name == "open_app":
            return Open(string(a["app_name"], "app_name"))
        if name in ("type", "answer"):
            return (Type if name == "type" else Answer)(string(a["text"], "text"))
        return _PLAIN[name]

    def _write(self, action: Action) -> str:
        name, arguments = self._fields(action)
        return dumps({"action_type": name, **arguments})

    def _fields(self, action: Action) -> tuple[str, dict[str, Any]]:
        match action:
            case Click(x, y, "left", 1):
                return "click", dict(zip("xy", self.grid.write(x, y), strict=True))
            case LongPress(x, y, 1.0):
                return "long_press", dict(zip("xy", self.grid.write(x, y), strict=True))
            case Scroll(0.5, 0.5) if way := direction(action):
                return "scroll", {"direction": way}
            case Type(text):
                return "type", {"text": text}
            case Open(app):
                return "open_app", {"app_name": app}
            case Answer(text):
                return "answer", {"text": text}
            case Finish(status):
                return "status", {"goal_status": "successful" if status == "success" else "infeasible"}
        for name, meant in _PLAIN.items():
            if action == meant:
                return name, {}
        raise self._refuse(action, f"{action} is none of {', '.join(ACTIONS)}")
