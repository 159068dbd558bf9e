r"""pyautogui code as OSWorld's agents write it, read from its syntax tree and never run.

    Open the menu
    ```python
    pyautogui.click(475, 250)
    ```

Coordinates are absolute pixels of the frame as the model sees it; bind the codec to that size with `at`. A few calls
with literal arguments are known, any other Python is refused: imports of pyautogui and time, `moveTo` (before a call
without a point, it says where), click and its kin, dragTo after moveTo, scroll and hscroll, write and typewrite, press
of one key, hotkey, time.sleep; and OSWorld's words WAIT (one second), DONE and FAIL. `scroll` is in notches, positive
is up; `hscroll` positive is right. Arguments that only time a call (duration, interval, tween) are read over.

Not expressible: Open, Answer, Nav, LongPress, a scroll on both axes.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, ClassVar

from guiderail.actions import prompts_desktop
from guiderail.actions.calls import quoted
from guiderail.actions.family import PixelCodec
from guiderail.actions.grid import plain
from guiderail.actions.jsontext import number, string, whole
from guiderail.actions.text import Unreadable, clip, read_thought, take_think, write_thought
from guiderail.actions.types import Action, Click, Drag, Finish, Key, Move, Scroll, Type, Wait
from guiderail.actions.wire import MAX_TEXT

WORDS: dict[str, Action] = {"WAIT": Wait(1.0), "DONE": Finish("success"), "FAIL": Finish("failure")}
_CLICKS = {"click": ("left", 1), "leftClick": ("left", 1), "rightClick": ("right", 1), "middleClick": ("middle", 1)}
_CLICKS |= {"doubleClick": ("left", 2), "tripleClick": ("left", 3)}
_POINT = ("x", "y")
_TIMING = ("duration", "interval", "tween", "logScreenshot", "_pause")
# call -> the names of its positional arguments
CALLS: dict[str, tuple[str, ...]] = {
    "pyautogui.moveTo": _POINT,
    "pyautogui.dragTo": (*_POINT, "duration", "tween", "button"),
    "pyautogui.click": (*_POINT, "clicks", "interval", "button"),
    **{f"pyautogui.{name}": _POINT for name in _CLICKS if name != "click"},
    "pyautogui.scroll": ("clicks", *_POINT),
    "pyautogui.vscroll": ("clicks", *_POINT),
    "pyautogui.hscroll": ("clicks", *_POINT),
    "pyautogui.write": ("message", "interval"),
    "pyautogui.typewrite": ("message", "interval"),
    "pyautogui.press": ("keys", "presses", "interval"),
    "pyautogui.hotkey": (),
    "time.sleep": ("secs",),
}
_FENCED = re.compile(r"(?:[A-Za-z]*[ \t]*\r?\n)?(.*?)```\s*", re.DOTALL)
_CODE_LINE = re.compile(r"^[ \t]*(?:import |pyautogui\.|time\.|(?:WAIT|DONE|FAIL)\s*\Z)", re.MULTILINE)
_LIMIT = 8 * MAX_TEXT
Call = tuple[str, dict[str, Any]]


class PyAutoGUICodec(PixelCodec):
    """See the module docstring."""

    name: ClassVar[str] = "pyautogui"
    prompts: ClassVar[tuple[str, str]] = prompts_desktop.PYAUTOGUI

    def _split(self, text: str) -> tuple[str, Any]:
        think, rest = take_think(text)
        if "```" in rest:
            before, _, after = rest.partition("```")
            if not (m := _FENCED.fullmatch(after)):
                raise Unreadable("The code fence is not closed, or text follows it.")
            code = m[1]
        else:
            m = _CODE_LINE.search(rest)
            if m is None:
                raise Unreadable("There is no code: expected a ``` block.")
            before, code = rest[: m.start()], rest[m.start() :]
        return read_thought(before) or read_thought(think), code

    def _join(self, thought: str, call: str) -> str:
        line = write_thought(thought, _no_code) + "\n" if thought else ""
        return f"{line}```{'' if call in WORDS else 'python'}\n{call}\n```"

    def _read(self, code: str) -> Action:
        if (word := code.strip()) in WORDS:
            return WORDS[word]
        calls = [call for statement in _statements(code) if (call := _call(statement))]
        pointer: tuple[float, float] | None = None
        if len(calls) == 2 and calls[0][0] == "pyautogui.moveTo":
            pointer = self._at(calls[0][1], None)
            calls = calls[1:]
        if len(calls) != 1:
            raise Unreadable("There are several actions; write exactly one." if calls else "The code does nothing.")
        name, a = calls[0]
        if name == "pyautogui.dragTo":
            if pointer is None:
                raise ValueError("dragTo needs a moveTo before it to say where it begins")
            if a.get("button", "left") != "left":
                raise ValueError("only the left button drags")
            return Drag(*pointer, *self._at(a, None))
        if pointer is not None and (name not in _POINTED or "x" in a or "y" in a):
            raise Unreadable("There are several actions; write exactly one.")
        return self._single(name.partition(".")[2], a, pointer)

    def _single(self, name: str, a: dict[str, Any], pointer: tuple[float, float] | None) -> Action:
        if name in _CLICKS:
            button, count = _CLICKS[name]
            button = string(a.get("button", button), "button")
            return Click(*self._at(a, pointer), button, whole(a.get("clicks", count), "clicks"))  # type: ignore[arg-type]
        if name in ("scroll", "vscroll", "hscroll"):
            n = whole(a.get("clicks"), "clicks")
            point = (0.5, 0.5) if pointer is None and not a.keys() & set(_POINT) else self._at(a, pointer)
            return Scroll(*point, n, 0) if name == "hscroll" else Scroll(*point, 0, -n)
        if name == "moveTo":
            return Move(*self._at(a, None))
        if name in ("write", "typewrite"):
            return Type(string(a.get("message"), "message"))
        if name == "sleep":
            return Wait(number(a.get("secs"), "secs"))
        if name == "press":
            if a.get("presses", 1) != 1:
                raise ValueError("press with presses is several actions; write exactly one")
            return Key((string(a.get("keys"), "keys"),))
        return Key(tuple(string(k, "key") for k in a["*"]))

    def _at(self, a: dict[str, Any], pointer: tuple[float, float] | None) -> tuple[float, float]:
        if "x" not in a and "y" not in a and pointer is not None:
            return pointer
        if "x" not in a or "y" not in a:
            raise ValueError("the call needs x and y")
        return self.grid.read([a["x"], a["y"]], "point")

    def _write(self, action: Action) -> str:
        match action:
            case Click(x, y, button, count):
                name = next((n for n, meant in _CLICKS.items() if meant == (button, count)), "")
                at = self._xy(x, y)
                return f"pyautogui.{name}({at})" if name else f"pyautogui.click({at}, {count}, button='{button}')"
            case Move(x, y):
                return f"pyautogui.moveTo({self._xy(x, y)})"
            case Drag(x, y, x2, y2):
                return f"pyautogui.moveTo({self._xy(x, y)})\npyautogui.dragTo({self._xy(x2, y2)}, button='left')"
            case Scroll(x, y, 0, dy):
                return f"pyautogui.scroll({-dy}, {self._xy(x, y)})"
            case Scroll(x, y, dx, 0):
                return f"pyautogui.hscroll({dx}, {self._xy(x, y)})"
            case Scroll():
                raise self._refuse(action, "one call scrolls one axis")
            case Type(text):
                return f"pyautogui.write({quoted(text, chr(39))})"
            case Key((key,)):
                return f"pyautogui.press({quoted(key, chr(39))})"
            case Key(names):
                return f"pyautogui.hotkey({', '.join(quoted(name, chr(39)) for name in names)})"
            case Wait(seconds):
                return f"time.sleep({plain(seconds)})"
            case Finish(status):
                return "DONE" if status == "success" else "FAIL"
        raise self._refuse(action, "there is no such call")

    def _xy(self, x: float, y: float) -> str:
        px, py = self.grid.write(x, y)
        return f"{px}, {py}"


_POINTED = {f"pyautogui.{n}" for n in (*_CLICKS, "scroll", "vscroll", "hscroll")}


def _no_code(line: str) -> str:
    """Keep a thought from reading like a code fence or a think tag."""
    return re.sub(r"\A<(?=think>)", r"\\u003c", line.replace("``", r"\u0060`"), flags=re.IGNORECASE)


def _statements(code: str) -> list[ast.stmt]:
    """The statements of code, as a tree. Raises Unreadable."""
    if len(code) > _LIMIT:
        raise Unreadable(f"The code has {len(code)} characters; at most {_LIMIT} are read.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        reason = e.msg if isinstance(e, SyntaxError) else type(e).__name__
        raise Unreadable(f"The code is not readable Python: {clip(reason, 80)}.") from None


def _call(statement: ast.stmt) -> Call | None:
    """(name, arguments) of a known call; None for a known import. Raises Unreadable."""
    if isinstance(statement, ast.Import):
        if all(n.name in ("pyautogui", "time") and not n.asname for n in statement.names):
            return None
        raise Unreadable("Only pyautogui and time are imported.")
    value = statement.value if isinstance(statement, ast.Expr) else None
    function = value.func if isinstance(value, ast.Call) else None
    if not isinstance(value, ast.Call) or not (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    ):
        raise Unreadable(f"A statement is no call of pyautogui: {type(statement).__name__}.")
    name = f"{function.value.id}.{function.attr}"
    if name not in CALLS:
        raise Unreadable(f"Unknown call {clip(name)}; known are calls of the mouse, the keyboard and time.sleep.")
    return name, _arguments(name, value)


def _arguments(name: str, call: ast.Call) -> dict[str, Any]:
    values = [_literal(name, v) for v in call.args]
    if name == "pyautogui.hotkey":
        values = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        found: dict[str, Any] = {"*": values}
    else:
        if len(values) > len(CALLS[name]):
            raise Unreadable(f"{name} takes at most {len(CALLS[name])} arguments by position.")
        found = dict(zip(CALLS[name], values, strict=False))
    known = ("button", *CALLS[name], *_TIMING) if name.endswith("lick") else (*CALLS[name], *_TIMING)
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in known:
            raise Unreadable(f"{name} has no argument {clip(str(keyword.arg))}.")
        if keyword.arg in found:
            raise Unreadable(f"{name}: argument {keyword.arg} is given twice.")
        found[keyword.arg] = None if keyword.arg == "tween" else _literal(name, keyword.value)
    return found


def _literal(name: str, node: ast.expr) -> Any:
    """A number, string, boolean, None or list of strings; nothing is computed but a sign."""
    match node:
        case ast.Constant(value) if value is None or isinstance(value, int | float | str):
            return value
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, ast.Constant(int() | float() as value)):
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elements) if all(isinstance(e, ast.Constant) for e in elements):
            return [e.value for e in elements if isinstance(e, ast.Constant)]
    raise Unreadable(f"{name}: arguments must be literals, got {type(node).__name__}.")
