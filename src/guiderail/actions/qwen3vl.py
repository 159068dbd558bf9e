r"""Qwen3-VL's `computer_use` tool call: an `Action: <thought>` line, then one `<tool_call>` block of strict JSON.

    Action: Open the menu
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [475, 250]}}
    </tool_call>

Coordinates are integers from 0 to 1000, read as thousandths of the screen on either axis (1000 is the last pixel, never
one beyond). `scroll`: `pixels` counts wheel notches, positive is up, as Qwen's tool and pyautogui have it; `hscroll`:
positive is right. Additions to Qwen's set, so that every action of the algebra can be written: `start_coordinate`
(left_click_drag), `count` (clicks), `coordinate` and `hpixels` (scroll), `open`, `system_button`.

Guarantees: `parse` is total and strict (exactly one block; duplicate or unknown keys, NaN, numbers out of range,
terminate without a status are failures with a one-sentence reason); `parse(render(a, t))` gives back `a` at 0.001 and
`t`. Model text is data: it never reaches an interpreter. Knows nothing of pixels or tokenizers.
"""

from __future__ import annotations

import json
import re
from typing import Any

from guiderail.actions.bounds import checked, quantise, read_chord
from guiderail.actions.prompts_full import QWEN3VL_FORMAT, QWEN3VL_FULL, SHORT_SYSTEM, SystemKind
from guiderail.actions.text import Unreadable, clip, read_thought, take_think, u4, well_formed, write_thought
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

# action -> (required arguments, optional arguments)
ACTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "key": (("keys",), ()),
    "type": (("text",), ()),
    "mouse_move": (("coordinate",), ()),
    "left_click": (("coordinate",), ("count",)),
    "left_click_drag": (("start_coordinate", "coordinate"), ()),
    "right_click": (("coordinate",), ("count",)),
    "middle_click": (("coordinate",), ("count",)),
    "double_click": (("coordinate",), ()),
    "triple_click": (("coordinate",), ()),
    "scroll": (("pixels",), ("coordinate", "hpixels")),
    "hscroll": (("pixels",), ("coordinate",)),
    "wait": ((), ("time",)),
    "terminate": (("status",), ()),
    "answer": (("text",), ()),
    "open": (("text",), ()),
    "system_button": (("button",), ()),
}
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ACTION_LINE = re.compile(r"^[ \t]*action:[ \t]*(.*)", re.IGNORECASE | re.MULTILINE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKUP = re.compile(r"<(?=\||/?tool_call)")
_SCALE = 1000


class Qwen3VLCodec:
    """The text format of Qwen3-VL's computer-use tool; see the module docstring."""

    name = "qwen3vl"

    def parse(self, text: str) -> Parsed | ParseFailure:
        """Read one action and its thought. Never raises."""
        try:
            think, rest = take_think(text)
            before, block = _block(rest)
            lines = _ACTION_LINE.findall(before)
            thought = read_thought(lines[-1] if lines else before) or well_formed(think)
            return Parsed(_action(_arguments(block)), thought)
        except Unreadable as e:
            return ParseFailure(str(e), text)
        except RecursionError:
            return ParseFailure("The tool call is nested too deeply.", text)

    def render(self, action: Action, thought: str = "") -> str:
        """Canonical text in Qwen's own layout. Raises ValueError on an action outside the algebra."""
        call = _dumps({"name": "computer_use", "arguments": _written(quantise(action))})
        line = f"Action: {write_thought(thought)}\n" if thought else ""
        return f"{line}{_OPEN}\n{call}\n{_CLOSE}"

    def quantise(self, action: Action) -> Action:
        """The action at this codec's resolution of 0.001. Raises ValueError on an action outside the algebra."""
        return quantise(action)

    def system_prompt(self, kind: SystemKind, thought: bool = True) -> str:
        """See `guiderail.actions.codec.Codec.system_prompt`."""
        if kind == "none":
            return ""
        return SHORT_SYSTEM if kind == "short" else QWEN3VL_FULL + QWEN3VL_FORMAT[thought]


def _block(text: str) -> tuple[str, Any]:
    """(text before the block, the block's JSON value). The JSON decides where the block ends, not its strings."""
    before, tag, rest = text.partition(_OPEN)
    if not tag:
        raise Unreadable("There is no <tool_call> block.")
    rest = rest.lstrip()
    try:
        value, end = _DECODER.raw_decode(rest)
    except ValueError as e:
        raise Unreadable(f"The tool call is not valid JSON: {e}.") from None
    rest = rest[end:].lstrip()
    if not rest.startswith(_CLOSE):
        raise Unreadable("The tool call is not closed by </tool_call> right after its JSON object.")
    if rest := rest[len(_CLOSE) :].strip():
        several = rest.startswith(_OPEN)
        raise Unreadable(
            "There are several tool calls; write exactly one." if several else f"Text after it: {clip(rest)}."
        )
    return before, value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"key {clip(name)} is given twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a finite number")


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _arguments(call: Any) -> dict[str, Any]:
    """Check the call's frame and the names of its arguments; returns the arguments."""
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        raise Unreadable('The tool call must be an object with exactly "name" and "arguments".')
    if call["name"] != "computer_use":
        raise Unreadable(f"Unknown function {_quote(call['name'])}; the only one is computer_use.")
    arguments = call["arguments"]
    if not isinstance(arguments, dict) or not isinstance(arguments.get("action"), str):
        raise Unreadable('"arguments" must be an object with a string "action".')
    name = arguments["action"]
    if name not in ACTIONS:
        raise Unreadable(f"Unknown action {clip(name)}; known are {', '.join(ACTIONS)}.")
    required, optional = ACTIONS[name]
    for argument in required:
        if argument not in arguments:
            raise Unreadable(f"{name} lacks the argument {argument}.")
    for argument in arguments:
        if argument not in ("action", *required, *optional):
            raise Unreadable(f"{name} has no argument {clip(argument)}.")
    return arguments


def _action(arguments: dict[str, Any]) -> Action:
    name = arguments["action"]
    try:
        return checked(_build(name, arguments))
    except ValueError as e:
        raise Unreadable(f"{name}: {e}.") from None


def _build(name: str, a: dict[str, Any]) -> Action:
    """The action of checked argument names. Raises ValueError on a wrong type or value."""
    if name in ("left_click", "right_click", "middle_click"):
        x, y = _point(a, "coordinate")
        return Click(x, y, name.split("_")[0], _whole(a, "count", 1))  # type: ignore[arg-type]
    if name in ("double_click", "triple_click"):
        return Click(*_point(a, "coordinate"), count=2 if name == "double_click" else 3)
    if name == "mouse_move":
        return Move(*_point(a, "coordinate"))
    if name == "left_click_drag":
        return Drag(*_point(a, "start_coordinate"), *_point(a, "coordinate"))
    if name == "scroll":
        return Scroll(*_point(a, "coordinate", centre=True), _whole(a, "hpixels", 0), -_whole(a, "pixels", 0))
    if name == "hscroll":
        return Scroll(*_point(a, "coordinate", centre=True), _whole(a, "pixels", 0), 0)
    if name == "wait":
        return Wait(_number(a.get("time", 1), "time"))
    if name == "key":
        return Key(_keys(a["keys"]))
    text = a[next(iter(ACTIONS[name][0]))]
    if not isinstance(text, str):
        raise ValueError(f"{ACTIONS[name][0][0]} must be a string")
    if name == "terminate":
        return Finish(text)  # type: ignore[arg-type]
    if name == "system_button":
        return Nav(text.lower())  # type: ignore[arg-type]
    if name == "open":
        return Open(text)
    return Type(text) if name == "type" else Answer(text)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {_quote(value)}")
    return value


def _whole(a: dict[str, Any], name: str, default: int) -> int:
    value = _number(a.get(name, default), name)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def _point(a: dict[str, Any], name: str, centre: bool = False) -> tuple[float, float]:
    """A [x, y] pair in thousandths as fractions; `centre`: the middle of the screen when the argument is absent."""
    if centre and name not in a:
        return 0.5, 0.5
    pair = a[name]
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"{name} must be [x, y], got {_quote(pair)}")
    x, y = (_number(v, name) for v in pair)
    if not (0 <= x <= _SCALE and 0 <= y <= _SCALE):
        raise ValueError(f"{name} {_quote(pair)} is outside [0, {_SCALE}]")
    return x / _SCALE, y / _SCALE


def _keys(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return read_chord(value)
    if not isinstance(value, list) or not all(isinstance(k, str) for k in value):
        raise ValueError(f"keys must be a list of strings, got {_quote(value)}")
    return tuple(value)


def _quote(value: Any) -> str:
    """A short quotation of any JSON value; numbers of any length."""
    return clip(value if isinstance(value, str) else json.dumps(value))


def _dumps(value: Any) -> str:
    """JSON in Qwen's spacing; no lone surrogate and nothing that reads like a special token or a tag."""
    text = json.dumps(value, ensure_ascii=False)
    return _MARKUP.sub(r"\\u003c", _SURROGATE.sub(lambda m: u4(m[0]), text))


def _written(action: Action) -> dict[str, Any]:
    """The arguments of a checked action."""

    def at(x: float, y: float) -> list[int]:
        return [round(x * _SCALE), round(y * _SCALE)]

    match action:
        case Click(x, y, "left", 2 | 3 as count):
            return {"action": "double_click" if count == 2 else "triple_click", "coordinate": at(x, y)}
        case Click(x, y, button, count):
            extra = {"count": count} if count != 1 else {}
            return {"action": f"{button}_click", "coordinate": at(x, y)} | extra
        case Move(x, y):
            return {"action": "mouse_move", "coordinate": at(x, y)}
        case Drag(x, y, x2, y2):
            return {"action": "left_click_drag", "start_coordinate": at(x, y), "coordinate": at(x2, y2)}
        case Scroll(x, y, dx, 0) if dx:
            return {"action": "hscroll", "coordinate": at(x, y), "pixels": dx}
        case Scroll(x, y, dx, dy):
            return {"action": "scroll", "coordinate": at(x, y), "pixels": -dy} | ({"hpixels": dx} if dx else {})
        case Type(text):
            return {"action": "type", "text": text}
        case Key(keys):
            return {"action": "key", "keys": list(keys)}
        case Wait(seconds):
            return {"action": "wait", "time": int(seconds) if seconds.is_integer() else seconds}
        case Open(app):
            return {"action": "open", "text": app}
        case Answer(text):
            return {"action": "answer", "text": text}
        case Nav(button):
            return {"action": "system_button", "button": button.capitalize()}
    return {"action": "terminate", "status": action.status}
