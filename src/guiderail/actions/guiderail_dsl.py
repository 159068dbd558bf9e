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
from guiderail.actions.prompts_full import GUIDERAIL_FORMAT, GUIDERAIL_FULL, SHORT_SYSTEM, SystemKind
from guiderail.actions.text import Unreadable, clip, escape, read_thought, take_think, well_formed, write_thought
from guiderail.actions.types import (
    Action,
    Answer,
    Click,
    Drag,
    Finish,
    Key,
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

_HEAD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\(\s*")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*")
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"|' r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_WORD = re.compile(r"[^\s,()\"']+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ACTION_LINE = re.compile(r"^[ \t]*action:[ \t]*", re.IGNORECASE | re.MULTILINE)
_THOUGHT_LINE = re.compile(r"\s*thought:", re.IGNORECASE)
_CALL_LIKE = re.compile(r"\A\s*[A-Za-z_]\w*\s*(\()(?=\s*(?:\)|[A-Za-z_]\w*\s*=))")
_PLAIN = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t"}


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
    m = _HEAD.match(text)
    if not m:
        raise Unreadable(
            f"No call found: expected KEYWORD(...), got {clip(text.strip())}." if text.strip() else "Empty."
        )
    keyword = m[1].upper()
    if keyword not in CALLS:
        raise Unreadable(f"Unknown action {clip(m[1])}; known are {', '.join(CALLS)}.")
    required, optional, build = CALLS[keyword]
    arguments, end = _arguments(text, m.end(), keyword, required | optional)
    if missing := [name for name in required if name not in arguments]:
        raise Unreadable(f"{keyword} lacks the argument {missing[0]}.")
    if rest := text[end:].strip():
        again = _HEAD.match(rest.lstrip(";,"))
        what = "There are several calls; write exactly one" if again else f"Text after the call: {clip(rest)}"
        raise Unreadable(f"{what}.")
    try:
        return checked(build(**arguments))
    except ValueError as e:
        raise Unreadable(f"{keyword}: {e}.") from None


def _arguments(text: str, at: int, keyword: str, types: dict[str, type]) -> tuple[dict[str, Any], int]:
    """Read `name=value, ...)` from `at`; returns the values and the place after the closing parenthesis."""
    found: dict[str, Any] = {}
    if text.startswith(")", at):
        return found, at + 1
    while True:
        m = _NAME.match(text, at)
        if not m:
            raise Unreadable(f"{keyword}: expected name=value, got {clip(text[at:]) if text[at:] else 'the end'}.")
        name = m[1].lower()
        if name not in types:
            raise Unreadable(f"{keyword} has no argument {clip(m[1])}.")
        if name in found:
            raise Unreadable(f"{keyword}: argument {name} is given twice.")
        found[name], at = _read_value(text, m.end(), f"{keyword}: {name}", types[name])
        rest = text[at:].lstrip()
        at = len(text) - len(rest)
        if rest.startswith(")"):
            return found, at + 1
        if not rest.startswith(","):
            raise Unreadable(f"{keyword}: expected , or ) after {name}, got {clip(rest) if rest else 'the end'}.")
        at = len(text) - len(rest[1:].lstrip())


def _read_value(text: str, at: int, where: str, kind: type) -> tuple[Any, int]:
    """Read one value of `kind` (str, float, int) at `at`; returns it and the place after it."""
    if kind is str:
        m = _STRING.match(text, at)
        if not m:
            raise Unreadable(f"{where} must be a quoted string, got {clip(text[at:])}.")
        body = m[1] if m[1] is not None else m[2]
        return well_formed(_ESCAPE.sub(lambda e: _unescaped(e[1], where), body)), m.end()
    m = _WORD.match(text, at)
    word = m[0] if m else ""
    if _NOT_FINITE.fullmatch(word):
        raise Unreadable(f"{where} is not a finite number.")
    if not m or not _NUMBER.fullmatch(word):
        raise Unreadable(f"{where} must be a number, got {clip(text[at:])}.")
    value = float(word)
    if kind is int:
        if not value.is_integer():
            raise Unreadable(f"{where} must be a whole number, got {clip(word)}.")
        return int(value), m.end()
    return value, m.end()


def _unescaped(code: str, where: str) -> str:
    if code in _PLAIN:
        return _PLAIN[code]
    if len(code) == 5:
        return chr(int(code[1:], 16))
    raise Unreadable(f"{where} has the unknown escape {clip(chr(92) + code)}.")


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
        case Key(keys):
            return "KEY", {"keys": chord(keys)}
        case Finish(status):
            return ("DONE" if status == "success" else "FAIL"), {}
    return type(action).__name__.upper(), dict(vars(action))


def _value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return '"' + escape(value).replace('"', r"\"") + '"'
    if name == "seconds":
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _not_a_call(line: str) -> str:
    """Hide the parenthesis of a thought that itself reads like a call, so that it cannot be taken for the action."""
    return _CALL_LIKE.sub(lambda m: m[0][:-1] + r"\u0028", line)
