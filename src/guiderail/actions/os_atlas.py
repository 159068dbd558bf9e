r"""OS-Atlas' answers: a thought section, then an action section of one line.

    thoughts:
    Open the menu
    actions:
    CLICK <point>[[475, 250]]</point>

Coordinates are integers from 0 to 1000, thousandths of the screen. Texts stand in brackets as they are, with `\n`,
`\t`, `\\` and `\uXXXX` for what a line cannot hold. SCROLL names the side of which more is to be seen (DOWN shows what
lies below), as AndroidControl does, and is read as five notches at the centre of the screen; public evaluators
disagree and some read it as the finger's way. WAIT is one second, LONG_PRESS one second. COMPLETE and IMPOSSIBLE end
the task. OPEN_APP and ENTER are custom actions that the prompt declares, as the family's prompts do.

Not expressible: Drag, Move, Answer, Nav("menu"), keys but enter, other scrolls, waits and presses, clicks other than
one with the left button.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from guiderail.actions import prompts_phone
from guiderail.actions.family import FamilyCodec, direction, labelled_thought, scrolled, take_fence, take_labelled
from guiderail.actions.text import Unreadable, clip, escape, unescape
from guiderail.actions.types import Action, Click, Finish, Key, LongPress, Nav, Open, Scroll, Type, Wait

_PLAIN: dict[str, Action] = {
    "PRESS_BACK": Nav("back"),
    "PRESS_HOME": Nav("home"),
    "PRESS_RECENT": Nav("recent"),
    "ENTER": Key(("enter",)),
    "WAIT": Wait(1.0),
    "COMPLETE": Finish("success"),
    "IMPOSSIBLE": Finish("failure"),
}
ACTIONS = ("CLICK", "TYPE", "SCROLL", "LONG_PRESS", "OPEN_APP", *_PLAIN)
_WORD = re.compile(r"\s*([A-Z_]+)\b[ \t]*(.*?)\s*\Z", re.DOTALL)
_AGAIN = re.compile(rf"[\r\n]\s*(?:{'|'.join(ACTIONS)})\b")
_POINT = re.compile(r"(?:<point>)?\s*\[\[\s*(-?[0-9.]+)\s*,\s*(-?[0-9.]+)\s*\]\]\s*(?:</point>)?")
_LABEL = "actions?"


class OSAtlasCodec(FamilyCodec):
    """See the module docstring."""

    name: ClassVar[str] = "os_atlas"
    prompts: ClassVar[tuple[str, str]] = prompts_phone.OS_ATLAS

    def _split(self, text: str) -> tuple[str, Any]:
        thought, call = take_labelled(text, "thoughts?", _LABEL)
        return thought, take_fence(call)

    def _join(self, thought: str, call: str) -> str:
        section = f"thoughts:\n{labelled_thought(thought, _LABEL)}\n" if thought else ""
        return f"{section}actions:\n{call}"

    def _read(self, call: str) -> Action:
        m = _WORD.match(call)
        if not m:
            raise Unreadable(f"No action found in {clip(call.strip())}." if call.strip() else "Empty.")
        name, argument = m[1], m[2]
        if name not in ACTIONS:
            raise Unreadable(f"Unknown action {clip(name)}; known are {', '.join(ACTIONS)}.")
        if _AGAIN.search(call, m.end(1)):
            raise Unreadable("There are several actions; write exactly one.")
        if name in _PLAIN:
            if argument:
                raise ValueError(f"{name} takes nothing, got {clip(argument)}")
            return _PLAIN[name]
        if name in ("CLICK", "LONG_PRESS"):
            x, y = self._point(name, argument)
            return Click(x, y) if name == "CLICK" else LongPress(x, y, 1.0)
        if not (argument.startswith("[") and argument.endswith("]") and len(argument) > 1):
            raise ValueError(f"{name} must be followed by [...], got {clip(argument)}")
        content = argument[1:-1]
        if name == "SCROLL":
            return scrolled(content)
        return (Type if name == "TYPE" else Open)(unescape(content))

    def _point(self, name: str, argument: str) -> tuple[float, float]:
        m = _POINT.fullmatch(argument)
        try:
            x, y = (float(m[1]), float(m[2])) if m else (None, None)
        except ValueError:
            x, y = None, None
        if x is None or y is None:
            raise ValueError(f"{name} must be followed by <point>[[x, y]]</point>, got {clip(argument)}")
        return self.grid.read([x, y], "point")

    def _write(self, action: Action) -> str:
        match action:
            case Click(x, y, "left", 1):
                return f"CLICK <point>[{self.grid.write(x, y)}]</point>"
            case LongPress(x, y, 1.0):
                return f"LONG_PRESS <point>[{self.grid.write(x, y)}]</point>"
            case Scroll(0.5, 0.5) if way := direction(action):
                return f"SCROLL [{way.upper()}]"
            case Type(text):
                return f"TYPE [{escape(text)}]"
            case Open(app):
                return f"OPEN_APP [{escape(app)}]"
        for name, meant in _PLAIN.items():
            if action == meant:
                return name
        raise self._refuse(action, f"{action} is none of {', '.join(ACTIONS)}")
