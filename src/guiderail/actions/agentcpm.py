r"""AgentCPM-GUI's compact JSON: one object holds the thought and the action.

    {"thought":"Open the menu","POINT":[475,250]}

Keys: POINT (tap; with `duration` above 200 ms a long press; with `to` a swipe of the finger, to a point or up, down,
left, right), PRESS (BACK, HOME, ENTER, APPSELECT), TYPE, `duration` alone (wait), STATUS (finish or satisfied;
impossible, interrupt or need_feedback end the task as not done). Coordinates are integers from 0 to 1000, thousandths
of the screen; `duration` is in milliseconds, 200 when absent. A swipe by direction is read as a Drag of a fifth of the
screen, shorter at its edge.

Not expressible: Open, Answer, Move, Scroll (a wheel), Nav("menu"), keys but enter, clicks other than one with the left
button, a long press of at most 0.2 s.
"""

from __future__ import annotations

from typing import Any, ClassVar

from guiderail.actions import prompts_phone
from guiderail.actions.family import FamilyCodec
from guiderail.actions.jsontext import dumps, number, quote, string, take_object
from guiderail.actions.text import Unreadable, clip, read_thought, take_think, well_formed
from guiderail.actions.types import Action, Click, Drag, Finish, Key, LongPress, Nav, Type, Wait

TAP_MS = 200
SWIPE = 200
_PRESS: dict[str, Action] = {
    "BACK": Nav("back"),
    "HOME": Nav("home"),
    "ENTER": Key(("enter",)),
    "APPSELECT": Nav("recent"),
}
_STATUS: dict[str, Action | None] = {
    "continue": None,
    "start": None,
    "finish": Finish("success"),
    "satisfied": Finish("success"),
    "impossible": Finish("failure"),
    "interrupt": Finish("failure"),
    "need_feedback": Finish("failure"),
}
_WAYS = {"up": (0, -SWIPE), "down": (0, SWIPE), "left": (-SWIPE, 0), "right": (SWIPE, 0)}
_KEYS = ("thought", "POINT", "to", "duration", "PRESS", "TYPE", "STATUS")


class AgentCPMCodec(FamilyCodec):
    """See the module docstring."""

    name: ClassVar[str] = "agentcpm"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.AGENTCPM

    def _split(self, text: str) -> tuple[str, Any]:
        think, rest = take_think(text)
        before, call = take_object(rest, "action")
        if "thought" in call:
            return well_formed(string(call["thought"], "thought")), call
        return read_thought(before) or read_thought(think), call

    def _join(self, thought: str, call: str) -> str:
        return dumps({"thought": thought}, compact=True)[:-1] + "," + call[1:] if thought else call

    def _read(self, call: Any) -> Action:
        for key in call:
            if key not in _KEYS:
                raise Unreadable(f"Unknown key {clip(key)}; known are {', '.join(_KEYS)}.")
        status = string(call.get("STATUS", "continue"), "STATUS")
        if status not in _STATUS:
            raise ValueError(f"STATUS {quote(status)} is not one of {', '.join(_STATUS)}")
        kinds = [k for k in ("POINT", "PRESS", "TYPE") if k in call]
        end = _STATUS[status]
        if len(kinds) + (end is not None) > 1 or ("to" in call and kinds != ["POINT"]):
            raise Unreadable("There are several actions in one object; write exactly one.")
        if end is not None:
            return end
        milliseconds = number(call.get("duration", TAP_MS), "duration")
        match kinds:
            case ["POINT"]:
                return self._touch(call, milliseconds)
            case ["PRESS"]:
                press = string(call["PRESS"], "PRESS")
                if press not in _PRESS:
                    raise ValueError(f"PRESS {quote(press)} is not one of {', '.join(_PRESS)}")
                return _PRESS[press]
            case ["TYPE"]:
                return Type(string(call["TYPE"], "TYPE"))
        if "duration" not in call:
            raise Unreadable("The object holds no action.")
        return Wait(milliseconds / 1000)

    def _touch(self, call: dict[str, Any], milliseconds: float) -> Action:
        x, y = self.grid.read(call["POINT"], "POINT")
        if "to" not in call:
            return LongPress(x, y, milliseconds / 1000) if milliseconds > TAP_MS else Click(x, y)
        to = call["to"]
        if not isinstance(to, str):
            return Drag(x, y, *self.grid.read(to, "to"))
        if to not in _WAYS:
            raise ValueError(f"to {quote(to)} is not a point, nor up, down, left or right")
        px, py = self.grid.write(x, y)
        end = [min(1000, max(0, v + step)) for v, step in zip((px, py), _WAYS[to], strict=True)]
        if end == [px, py]:
            raise ValueError(f"a swipe {to} from {quote(call['POINT'])} leaves the screen")
        return Drag(x, y, *self.grid.read(end, "to"))

    def _write(self, action: Action) -> str:
        return dumps(self._fields(action), compact=True)

    def _fields(self, action: Action) -> dict[str, Any]:
        at = self.grid.write
        match action:
            case Click(x, y, "left", 1):
                return {"POINT": at(x, y)}
            case Click():
                raise self._refuse(action, "it has one tap, with the finger")
            case LongPress(x, y, seconds):
                if round(seconds * 1000) <= TAP_MS:
                    raise self._refuse(action, f"a touch of at most {TAP_MS} ms is a tap")
                return {"POINT": at(x, y), "duration": round(seconds * 1000)}
            case Drag(x, y, x2, y2):
                return {"POINT": at(x, y), "to": at(x2, y2)}
            case Type(text):
                return {"TYPE": text}
            case Wait(seconds):
                return {"duration": round(seconds * 1000)}
            case Finish(status):
                return {"STATUS": "finish" if status == "success" else "impossible"}
        for press, meant in _PRESS.items():
            if action == meant:
                return {"PRESS": press}
        raise self._refuse(action, "it has only POINT, to, PRESS, TYPE, duration and STATUS")
