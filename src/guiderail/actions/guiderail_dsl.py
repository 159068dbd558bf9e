r"""The guiderail DSL: `CLICK(x=0.475, y=0.250)` after an `Action: <thought>` line; reads openadapt's forms too.

    text  := [<think>..</think>] ["Thought: " lines] ["Action: " thought] call
    call  := KEYWORD "(" [name "=" value ("," name "=" value)*] ")"      keywords in any case, white space free
    value := number | "string" | 'string'                                escapes: \\ \" \' \n \t \uXXXX

Guarantees: `parse` is total and strict (one call, the whole text, named arguments, no duplicates, finite numbers in
range) and says in one sentence what was wrong; `parse(render(a, t))` gives back `a` at a resolution of 0.001 (points,
seconds) and `t`. A string is data: it never reaches an interpreter. Knows nothing of pixels or tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from guiderail.actions.bounds import checked, chord, quantise, read_chord
from guiderail.actions.calls import quoted, read_call
from guiderail.actions.prompts_full import GUIDERAIL_FORMAT, GUIDERAIL_FULL, SHORT_SYSTEM, SystemKind
from guiderail.actions.text import Unreadable, read_thought, take_think, well_formed, write_thought
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
    Parsed,
    ParseFailure,
    Scroll,
    Type,
    Wait,
)

_XY: dict[str, type] = {"x": float, "y": float}
_CLICK: dict[str, type] = {"button": str, "count": int}
Build = Callable[..., Action]
# keyword -> (required arguments, optional arguments, constructor); argument order is the order they are written in
CALLS: dict[str, tuple[dict[str, type], dict[str, type], Build]] = {
    "CLICK": (_XY, _CLICK, Click),
    "DOUBLE_CLICK": (_XY, {}, lambda x, y: Click(x, y, count=2)),
    "RIGHT_CLICK": (_XY, {}, lambda x, y: Click(x, y, button="right")),
    "MOVE": (_XY, {}, Move),
    "LONG_PRESS": (_XY, {"seconds": float}, LongPress),
    "DRAG": (_XY | {"x2": float, "y2": float}, {}, Drag),
    "SCROLL": (_XY, {"dx": int, "dy": int}, Scroll),
    "TYPE": ({"text": str}, {}, Type),
    "KEY": ({"keys": str}, {}, lambda keys: Key(read_chord(keys))),
    "WAIT": ({}, {"seconds": float}, Wait),
    "OPEN": ({"app": str}, {}, Open),
    "ANSWER": ({"text": str}, {}, Answer),
    "NAV": ({"button": str}, {}, lambda button: Nav(button.lower())),
    "DONE": ({}, {}, lambda: Finish("success")),
    "FAIL": ({}, {}, lambda: Finish("failure")),
}

_TYPES = {keyword: (required, optional) for keyword, (required, optional, _) in CALLS.items()}

_ACTION_LINE = re.compile(r"^[ \t]*action:[ \t]*", re.IGNORECASE | re.MULTILINE)
_THOUGHT_LINE = re.compile(r"\s*thought:", re.IGNORECASE)
_CALL_LIKE = re.compile(r"\A\s*[A-Za-z_]\w*\s*(\()(?=\s*(?:\)|[A-Za-z_]\w*\s*=))")


class GuiderailCodec:
    """The default codec; see the module docstring for the grammar."""

    name = "guiderail"

    def parse(self, text: str) -> Parsed | ParseFailure:
        """Read one action and its thought. Never raises."""
        try:
            thought, call = _envelope(text)
            return Parsed(_call(call), thought)
        except Unreadable as e:
            return ParseFailure(str(e), text)

    def render(self, action: Action, thought: str = "") -> str:
        """Canonical text, points with three decimals. Raises ValueError on an action outside the algebra."""
        keyword, arguments = _written(quantise(action))
        call = f"{keyword}({', '.join(f'{k}={_value(k, v)}' for k, v in arguments.items())})"
        return f"Action: {write_thought(thought, _not_a_call)}\n{call}" if thought else call

    def at(self, width: int, height: int) -> GuiderailCodec:
        """Itself: points are fractions of any screen."""
        return self

    def quantise(self, action: Action) -> Action:
        """The action at this codec's resolution of 0.001. Raises ValueError on an action outside the algebra."""
        return quantise(action)

    def system_prompt(self, kind: SystemKind, thought: bool = True) -> str:
        """See `guiderail.actions.codec.Codec.system_prompt`."""
        if kind == "none":
            return ""
        return SHORT_SYSTEM if kind == "short" else GUIDERAIL_FULL + GUIDERAIL_FORMAT[thought]


def _envelope(text: str) -> tuple[str, str]:
    """Split model text into (thought, call text)."""
    think, text = take_think(text)
    thought = well_formed(think)
    if m := _THOUGHT_LINE.match(text):
        action = _ACTION_LINE.search(text, m.end())
        if action is None:
            raise Unreadable("A Thought: line is not followed by an Action: line.")
        thought, text = read_thought(text[m.end() : action.start()]), text[action.start() :]
    text = text.strip()
    m = _ACTION_LINE.match(text)
    if not m:
        return thought, text
    head, newline, rest = text[m.end() :].partition("\n")
    if not rest.strip() or _is_call(head + newline + rest):
        return thought, head + newline + rest
    if _is_call(head):
        raise Unreadable("There are several calls, or text after the call; write exactly one.")
    if _ACTION_LINE.match(rest):
        raise Unreadable("There are several Action: lines; write exactly one.")
    return read_thought(head) or thought, rest


def _is_call(text: str) -> bool:
    """Whether the whole of `text` is one readable call."""
    try:
        _call(text)
    except Unreadable:
        return False
    return True


def _call(text: str) -> Action:
    """Read `text`, all of it, as one call."""
    keyword, arguments = read_call(text, _TYPES)
    try:
        return checked(CALLS[keyword][2](**arguments))
    except ValueError as e:
        raise Unreadable(f"{keyword}: {e}.") from None


def _written(action: Action) -> tuple[str, dict[str, Any]]:
    """(keyword, arguments) of a checked action."""
    match action:
        case Click(x, y, "left", 2):
            return "DOUBLE_CLICK", {"x": x, "y": y}
        case Click(x, y, "right", 1):
            return "RIGHT_CLICK", {"x": x, "y": y}
        case Click(x, y, button, count):
            extra = {"button": button} if button != "left" else {}
            return "CLICK", {"x": x, "y": y} | extra | ({"count": count} if count != 1 else {})
        case LongPress():
            return "LONG_PRESS", dict(vars(action))
        case Key(keys):
            return "KEY", {"keys": chord(keys)}
        case Finish(status):
            return ("DONE" if status == "success" else "FAIL"), {}
    return type(action).__name__.upper(), dict(vars(action))


def _value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if name == "seconds":
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _not_a_call(line: str) -> str:
    """Hide the parenthesis of a thought that itself reads like a call, so that it cannot be taken for the action."""
    return _CALL_LIKE.sub(lambda m: m[0][:-1] + r"\u0028", line)
