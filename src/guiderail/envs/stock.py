"""Typed actions for a stock OSWorld server, which knows only `python3 -c CODE`: rendered by us, from constants alone.

Guarantees: the code holds numbers and quoted constants that we wrote, never a word of a model's as code; text is an
ASCII literal (`ascii()`), so no encoding or quote of it can end the string. Text that pyautogui types wrong (`<` comes
out as `>`, everything beyond ASCII is dropped, a newline breaks OSWorld's converter) goes through XTEST with a borrowed
keycode, by python-xlib, which every such image has, since pyautogui needs it.
"""

from __future__ import annotations

import string
from typing import Any

from guiderail.actions.types import Action, Click, Drag, Key, LongPress, Move, Scroll, Type, to_pixel
from guiderail.envs.keys import ALIASES, NAMED, UnknownKey

HEAD = "import pyautogui, time\npyautogui.FAILSAFE = False\npyautogui.PAUSE = 0.01\n"
TYPABLE = frozenset(string.ascii_letters + string.digits + " `-=[]\\;',./~!@#$%^&*()_+{}|:\"?")  # without < and >
NAMES = {"meta": "win", "escape": "esc", "capslock": "capslock"}
MAX_WAIT_S = 30.0
XTEST_TYPE = """
import time
from Xlib import X, XK, display
from Xlib.ext import xtest
d = display.Display()
lo = d.display.info.min_keycode
n = d.display.info.max_keycode - lo + 1
rows = [list(r) for r in d.get_keyboard_mapping(lo, n)]
shift = d.keysym_to_keycode(XK.XK_Shift_L)
spare = [lo + i for i, r in enumerate(rows) if i and not any(r)][-1]
control = {10: 0xFF0D, 9: 0xFF09}
def tap(code, shifted):
    if shifted:
        xtest.fake_input(d, X.KeyPress, shift)
    xtest.fake_input(d, X.KeyPress, code)
    xtest.fake_input(d, X.KeyRelease, code)
    if shifted:
        xtest.fake_input(d, X.KeyRelease, shift)
    d.sync()
where = {}
for i, r in enumerate(rows):
    for level in (0, 1):
        if level < len(r) and r[level]:
            where.setdefault(r[level], (lo + i, level))
last = 0
for c in text:
    o = ord(c)
    sym = control.get(o) or (o if 0x20 <= o <= 0x7E or 0xA0 <= o <= 0xFF else 0x1000000 + o)
    if sym in where:
        tap(*where[sym])
        continue
    if sym != last:
        time.sleep(0.05)
        d.change_keyboard_mapping(spare, [[sym] * len(rows[0])])
        d.sync()
        time.sleep(0.05)
        last = sym
    tap(spare, 0)
if last:
    time.sleep(0.2)
    d.change_keyboard_mapping(spare, [[0] * len(rows[0])])
    d.sync()
"""


def check_wait(seconds: float) -> None:
    """Raises ValueError for a wait that our own server would not do either."""
    if not 0 <= seconds <= MAX_WAIT_S:
        raise ValueError(f"{seconds:g} seconds: 0 to {MAX_WAIT_S:g} can be waited at once")


def render(action: Action, width: int, height: int) -> str:
    """Python that does `action` on a screen of that size. Raises ValueError for an action it cannot do."""
    match action:
        case Click(x, y, button, count):
            if not 1 <= count <= 3:
                raise ValueError(f"Click.count = {count}: 1 to 3 clicks at once")
            px, py = to_pixel(x, y, width, height)
            return f"{HEAD}pyautogui.click({px}, {py}, clicks={count}, button={button!r})"
        case Move(x, y):
            return f"{HEAD}pyautogui.moveTo({_at(x, y, width, height)})"
        case LongPress(x, y, seconds):
            check_wait(seconds)
            return f"{HEAD}pyautogui.mouseDown({_at(x, y, width, height)})\ntime.sleep({seconds})\npyautogui.mouseUp()"
        case Drag(x, y, x2, y2):
            end = _at(x2, y2, width, height)
            return f"{HEAD}pyautogui.moveTo({_at(x, y, width, height)})\npyautogui.dragTo({end}, 0.5, button='left')"
        case Scroll(x, y, dx, dy):
            lines = [f"pyautogui.moveTo({_at(x, y, width, height)})"]
            lines += [f"pyautogui.vscroll({-dy})"] if dy else []
            lines += [f"pyautogui.hscroll({dx})"] if dx else []
            return HEAD + "\n".join(lines)
        case Type(text):
            text = text.replace("\r\n", "\n")
            if all(c in TYPABLE for c in text):
                return f"{HEAD}pyautogui.write({text!a})"
            return f"text = {text!a}{XTEST_TYPE}"
        case Key(keys):
            return f"{HEAD}pyautogui.hotkey({', '.join(ascii(_key(k)) for k in keys)})"
    raise ValueError(f"{type(action).__name__} is no action of mouse and keyboard")


def _at(x: float, y: float, width: int, height: int) -> str:
    return "{}, {}".format(*to_pixel(x, y, width, height))


def _key(name: str) -> str:
    """pyautogui's name of a key. Raises UnknownKey."""
    lower = ALIASES.get(name.lower(), name.lower())
    if lower in NAMED:
        return NAMES.get(lower, lower)
    if len(name) == 1 and name in TYPABLE:
        return lower
    raise UnknownKey(f"unknown key {name!r}: use a single character or one of {', '.join(sorted(NAMED))}")


def windows(listing: str) -> list[dict[str, Any]]:
    """The windows of `wmctrl -lGpx`'s listing, as `Machine.windows` gives them (kind and active are not known)."""
    found = []
    for line in listing.splitlines():
        parts = line.split(maxsplit=9)
        if len(parts) < 9:
            continue
        number, _, pid, x, y, w, h, app, _ = parts[:9]
        row = {"id": int(number, 16), "title": parts[9] if len(parts) > 9 else "", "app": app, "kind": "normal"}
        found.append({**row, "box": [int(x), int(y), int(w), int(h)], "active": False, "pid": int(pid)})
    return found
