r"""Qwen3-VL's `computer_use` tool call: an `Action: <thought>` line, then one `<tool_call>` block of strict JSON.

    Action: Open the menu
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [475, 250]}}
    </tool_call>

Coordinates are integers from 0 to 1000, read as thousandths of the screen on either axis (1000 is the last pixel, never
one beyond). `scroll`: `pixels` counts wheel notches, positive is up, as Qwen's tool and pyautogui have it; `hscroll`:
positive is right. Additions to Qwen's set, so that every action of the algebra can be written: `start_coordinate`
(left_click_drag), `long_press`, `count` (clicks), `coordinate` and `hpixels` (scroll), `open`, `system_button`.

Guarantees: `parse` is total and strict (exactly one block; duplicate or unknown keys, NaN, numbers out of range,
terminate without a status are failures with a one-sentence reason); `parse(render(a, t))` gives back `a` at 0.001 and
`t`. Model text is data: it never reaches an interpreter. Knows nothing of pixels or tokenizers.
"""

from __future__ import annotations

import re
from typing import Any

from guiderail.actions.bounds import checked, quantise
from guiderail.actions.grid import THOUSANDTHS, plain
from guiderail.actions.jsontext import dumps, keys, number, quote, string, take_block, take_fields, whole
from guiderail.actions.prompts_full import QWEN3VL_FORMAT, QWEN3VL_FULL, SHORT_SYSTEM, SystemKind
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

# action -> (required arguments, optional arguments)
ACTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "key": (("keys",), ()),
    "type": (("text",), ()),
    "mouse_move": (("coordinate",), ()),
    "left_click": (("coordinate",), ("count",)),
    "long_press": (("coordinate",), ("time",)),
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
_ACTION_LINE = re.compile(r"^[ \t]*action:[ \t]*(.*)", re.IGNORECASE | re.MULTILINE)


class Qwen3VLCodec:
    """The text format of Qwen3-VL's computer-use tool; see the module docstring."""

    name = "qwen3vl"

    def parse(self, text: str) -> Parsed | ParseFailure:
        """Read one action and its thought. Never raises."""
        try:
            think, rest = take_think(text)
            before, block = take_block(rest, "tool_call", "tool call")
            lines = _ACTION_LINE.findall(before)
            thought = read_thought(lines[-1] if lines else before) or well_formed(think)
            return Parsed(_action(_arguments(block)), thought)
        except Unreadable as e:
            return ParseFailure(str(e), text)

    def render(self, action: Action, thought: str = "") -> str:
        """Canonical text in Qwen's own layout. Raises ValueError on an action outside the algebra."""
        call = dumps({"name": "computer_use", "arguments": _written(quantise(action))})
        line = f"Action: {write_thought(thought)}\n" if thought else ""
        return f"{line}<tool_call>\n{call}\n</tool_call>"

    def at(self, width: int, height: int) -> Qwen3VLCodec:
        """Itself: points are fractions of any screen."""
        return self

    def quantise(self, action: Action) -> Action:
        """The action at this codec's resolution of 0.001. Raises ValueError on an action outside the algebra."""
        return quantise(action)

    def system_prompt(self, kind: SystemKind, thought: bool = True) -> str:
        """See `guiderail.actions.codec.Codec.system_prompt`."""
        if kind == "none":
            return ""
        return SHORT_SYSTEM if kind == "short" else QWEN3VL_FULL + QWEN3VL_FORMAT[thought]


def _arguments(call: Any) -> dict[str, Any]:
    """Check the call's frame and the names of its arguments; returns the arguments."""
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        raise Unreadable('The tool call must be an object with exactly "name" and "arguments".')
    if call["name"] != "computer_use":
        raise Unreadable(f"Unknown function {quote(call['name'])}; the only one is computer_use.")
    name, rest = take_fields(call["arguments"], "action", ACTIONS, what='"arguments"')
    return {"action": name, **rest}


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
        return Click(x, y, name.split("_")[0], whole(a.get("count", 1), "count"))  # type: ignore[arg-type]
    if name in ("double_click", "triple_click"):
        return Click(*_point(a, "coordinate"), count=2 if name == "double_click" else 3)
    if name == "mouse_move":
        return Move(*_point(a, "coordinate"))
    if name == "left_click_drag":
        return Drag(*_point(a, "start_coordinate"), *_point(a, "coordinate"))
    if name == "scroll":
        return Scroll(
            *_point(a, "coordinate", centre=True), whole(a.get("hpixels", 0), "hpixels"), -whole(a["pixels"], "pixels")
        )
    if name == "hscroll":
        return Scroll(*_point(a, "coordinate", centre=True), whole(a["pixels"], "pixels"), 0)
    if name == "wait":
        return Wait(number(a.get("time", 1), "time"))
    if name == "key":
        return Key(keys(a["keys"]))
    if name == "long_press":
        return LongPress(*_point(a, "coordinate"), number(a.get("time", 1), "time"))
    text = string(a[ACTIONS[name][0][0]], ACTIONS[name][0][0])
    if name == "terminate":
        return Finish(text)  # type: ignore[arg-type]
    if name == "system_button":
        return Nav(text.lower())  # type: ignore[arg-type]
    if name == "open":
        return Open(text)
    return Type(text) if name == "type" else Answer(text)


def _point(a: dict[str, Any], name: str, centre: bool = False) -> tuple[float, float]:
    """A [x, y] pair in thousandths as fractions; `centre`: the middle of the screen when the argument is absent."""
    return (0.5, 0.5) if centre and name not in a else THOUSANDTHS.read(a[name], name)


def _written(action: Action) -> dict[str, Any]:
    """The arguments of a checked action."""

    at = THOUSANDTHS.write
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
        case LongPress(x, y, seconds):
            return {"action": "long_press", "coordinate": at(x, y), "time": plain(seconds)}
        case Type(text):
            return {"action": "type", "text": text}
        case Key(keys):
            return {"action": "key", "keys": list(keys)}
        case Wait(seconds):
            return {"action": "wait", "time": plain(seconds)}
        case Open(app):
            return {"action": "open", "text": app}
        case Answer(text):
            return {"action": "answer", "text": text}
        case Nav(button):
            return {"action": "system_button", "button": button.capitalize()}
    return {"action": "terminate", "status": action.status}
