"""pyautogui scripts as actions: what OSWorld-style agents send, read as data and never run.

Guarantees: only calls of the functions below with literal arguments are read, after `import pyautogui` or `import time`
lines; everything else is a ValueError that names it, whatever the text (nothing is executed, imported or evaluated but
literals). The pointer's place is carried from script to script, since `dragTo`, `scroll` and a bare `click` start
there. Points are pixels of the screen; the two reference agents round a little past its edge (1000 * width / 999), so
that much is clamped; farther off is `OffScreen`. Scripts that press and release by hand become chords and drags.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from guiderail.actions.bounds import normal_key
from guiderail.actions.types import Action, Button, Click, Drag, Key, Move, Scroll, Type, Wait
from guiderail.actions.wire import MAX_TEXT

MODULES = ("pyautogui", "time")
SIDES = {f"{k}{side}": k for k in ("ctrl", "alt", "shift") for side in ("left", "right")}
KEYS = {**SIDES, "winleft": "meta", "winright": "meta", "optionleft": "alt", "optionright": "alt", "\n": "enter"}
DEFAULT_PAUSE_S = 1.0
MAX_ACTIONS = 256  # of one script: more would hold up whoever shares the reader, and outlast a call


class OffScreen(ValueError):
    """A point that is not on the screen. `code` is its class on the pool's wire."""

    code = "off_screen"


@dataclass
class Pointer:
    """What outlives a script: where the pointer is, which keys and button are held."""

    width: int
    height: int
    x: int = -1
    y: int = -1
    held: list[str] = field(default_factory=list)
    pressed: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.x < 0:
            self.x, self.y = self.width // 2, self.height // 2

    def at(self) -> tuple[float, float]:
        """The place as fractions, in the middle of its pixel."""
        return (self.x + 0.5) / self.width, (self.y + 0.5) / self.height

    def go(self, x: Any, y: Any) -> tuple[float, float]:
        """Move to a pixel (None = stay). Raises ValueError, OffScreen."""
        if x is not None or y is not None:
            self.x = _on(x, self.width, "x") if x is not None else self.x
            self.y = _on(y, self.height, "y") if y is not None else self.y
        return self.at()


def read_script(code: str, pointer: Pointer) -> list[Action]:
    """The actions of a script, in order; moves `pointer`. Raises ValueError; the pointer is then as it was."""
    if len(code) > 2 * MAX_TEXT:
        raise ValueError(f"the script has {len(code)} characters; at most {2 * MAX_TEXT} are read")
    _few(code.strip().count("\n") + 1)  # before Python's own reader spends its time on them
    try:
        body = ast.parse(code.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ValueError(f"the script is not Python: {type(e).__name__}: {e}") from None
    before = (pointer.x, pointer.y, list(pointer.held), pointer.pressed)
    actions: list[Action] = []
    try:
        for number, statement in enumerate(body, 1):
            actions += _statement(statement, pointer)
            _few(max(number, len(actions)))
        return actions
    except ValueError:
        pointer.x, pointer.y, pointer.held, pointer.pressed = before
        raise


def _statement(node: ast.stmt, pointer: Pointer) -> list[Action]:
    if isinstance(node, ast.Import) and all(a.name in MODULES and a.asname is None for a in node.names):
        return []
    call = node.value if isinstance(node, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        raise ValueError(f"line {node.lineno}: only calls like pyautogui.click(10, 20) are read")
    owner = call.func.value
    name = f"{owner.id if isinstance(owner, ast.Name) else '?'}.{call.func.attr}"
    do = CALLS.get(name)
    if do is None:
        raise ValueError(f"line {node.lineno}: {name} is not read; known: {', '.join(sorted(CALLS))}")
    try:
        args = [ast.literal_eval(a) for a in call.args]
        if any(k.arg is None for k in call.keywords):
            raise ValueError("** is not read")
        named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        return do(pointer, *args, **named)
    except OffScreen:
        raise
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as e:
        raise ValueError(f"line {node.lineno}: {name}: {e}") from None


def _few(count: int) -> None:
    if count > MAX_ACTIONS:
        raise ValueError(f"{count} actions or lines; a script may have {MAX_ACTIONS}")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, not {str(value)[:40]!r}")
    return float(value)


def _on(value: Any, size: int, what: str) -> int:
    pixel = int(_number(value, what))
    if not 0 <= pixel <= math.ceil(1000 * size / 999):
        raise OffScreen(f"{what} = {pixel} is off the screen of {size} pixels")
    return min(pixel, size - 1)


def _text(value: Any, what: str = "text") -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string, not {str(value)[:40]!r}")
    return value


def _keys(pointer: Pointer, *names: Any) -> Action:
    wanted = [normal_key(KEYS.get(k.lower(), k)) for k in (_text(n, "a key") for n in names)]
    return Key(tuple([*pointer.held, *wanted]))


def _clicks(button: str, count: int) -> Callable[..., list[Action]]:
    def do(
        p: Pointer, x: Any = None, y: Any = None, clicks: Any = count, interval: Any = 0, button: Any = button, **_: Any
    ) -> list[Action]:
        if button not in ("left", "right", "middle", "primary", "secondary"):
            raise ValueError(f"button {str(button)[:40]!r} is not one of left, right, middle")
        side = {"primary": "left", "secondary": "right"}.get(button, button)
        times = int(_number(clicks, "clicks"))
        if not 1 <= times <= 3:
            raise ValueError(f"{times} clicks at once; 1 to 3 are carried")
        return [Click(*p.go(x, y), cast(Button, side), times)]

    return do


def _move(p: Pointer, x: Any = None, y: Any = None, *_: Any, **__: Any) -> list[Action]:
    here = p.go(x, y)
    return [] if p.pressed else [Move(*here)]


def _move_by(p: Pointer, x: Any = 0, y: Any = 0, *_: Any, **__: Any) -> list[Action]:
    return _move(p, p.x + int(_number(x, "xOffset")), p.y + int(_number(y, "yOffset")))


def _drag(p: Pointer, x: Any = None, y: Any = None, *_: Any, button: Any = "left", **__: Any) -> list[Action]:
    if button not in ("left", "primary"):
        raise ValueError("only drags with the left button are carried")
    start = p.at()
    return [Drag(*start, *p.go(x, y))]


def _drag_by(p: Pointer, x: Any = 0, y: Any = 0, *_: Any, **named: Any) -> list[Action]:
    return _drag(p, p.x + int(_number(x, "xOffset")), p.y + int(_number(y, "yOffset")), **named)


def _mouse_down(p: Pointer, x: Any = None, y: Any = None, button: Any = "left", **_: Any) -> list[Action]:
    if button not in ("left", "primary"):
        raise ValueError("only the left button can be held")
    p.pressed = p.go(x, y)
    return []


def _mouse_up(p: Pointer, x: Any = None, y: Any = None, *_: Any, **__: Any) -> list[Action]:
    start, end = p.pressed, p.go(x, y)
    p.pressed = None
    if start is None:
        return []
    return [Click(*end)] if start == end else [Drag(*start, *end)]


def _scroll(p: Pointer, clicks: Any, x: Any = None, y: Any = None, *_: Any, **__: Any) -> list[Action]:
    return [Scroll(*p.go(x, y), dy=-int(_number(clicks, "clicks")))]  # pyautogui: positive scrolls up


def _hscroll(p: Pointer, clicks: Any, x: Any = None, y: Any = None, *_: Any, **__: Any) -> list[Action]:
    return [Scroll(*p.go(x, y), dx=int(_number(clicks, "clicks")))]


def _write(p: Pointer, message: Any = "", *_: Any, **__: Any) -> list[Action]:
    if isinstance(message, list | tuple):
        _few(len(message))
        return [_keys(p, k) for k in message]
    return [Type(_text(message))] if message else []


def _press(p: Pointer, keys: Any, presses: Any = 1, *_: Any, **__: Any) -> list[Action]:
    times = int(_number(presses, "presses"))
    if not 0 <= times <= 100:
        raise ValueError(f"{times} presses; at most 100 are carried")
    names = keys if isinstance(keys, list | tuple) else [keys]
    _few(times * len(names))
    return [_keys(p, k) for _ in range(times) for k in names]


def _hotkey(p: Pointer, *keys: Any, interval: Any = 0, **_: Any) -> list[Action]:
    names = keys[0] if len(keys) == 1 and isinstance(keys[0], list | tuple) else keys
    if not names:
        raise ValueError("names no key")
    return [_keys(p, *names)]


def _key_down(p: Pointer, key: Any, *_: Any, **__: Any) -> list[Action]:
    name = normal_key(KEYS.get(_text(key, "a key").lower(), key))
    if name not in p.held:
        p.held.append(name)
    return []


def _key_up(p: Pointer, key: Any, *_: Any, **__: Any) -> list[Action]:
    name = normal_key(KEYS.get(_text(key, "a key").lower(), key))
    p.held = [k for k in p.held if k != name]
    return []


def _sleep(p: Pointer, seconds: Any = DEFAULT_PAUSE_S, **_: Any) -> list[Action]:
    return [Wait(max(0.0, _number(seconds, "seconds")))]


CALLS: dict[str, Callable[..., list[Action]]] = {
    "pyautogui.click": _clicks("left", 1),
    "pyautogui.leftClick": _clicks("left", 1),
    "pyautogui.rightClick": _clicks("right", 1),
    "pyautogui.middleClick": _clicks("middle", 1),
    "pyautogui.doubleClick": _clicks("left", 2),
    "pyautogui.tripleClick": _clicks("left", 3),
    "pyautogui.moveTo": _move,
    "pyautogui.move": _move_by,
    "pyautogui.moveRel": _move_by,
    "pyautogui.dragTo": _drag,
    "pyautogui.drag": _drag_by,
    "pyautogui.dragRel": _drag_by,
    "pyautogui.mouseDown": _mouse_down,
    "pyautogui.mouseUp": _mouse_up,
    "pyautogui.scroll": _scroll,
    "pyautogui.vscroll": _scroll,
    "pyautogui.hscroll": _hscroll,
    "pyautogui.typewrite": _write,
    "pyautogui.write": _write,
    "pyautogui.press": _press,
    "pyautogui.hotkey": _hotkey,
    "pyautogui.keyDown": _key_down,
    "pyautogui.keyUp": _key_up,
    "pyautogui.sleep": _sleep,
    "time.sleep": _sleep,
}
