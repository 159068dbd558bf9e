"""Keyboard and mouse as CDP events: characters of a US layout, named keys, chords.

Guarantees: every event carries the key code a real US keyboard would send, so page handlers see what a user would
cause; a character that is on no key still arrives as text. An unknown key name raises ValueError and nothing is sent.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}

# name -> (key, code, windowsVirtualKeyCode, text)
NAMED: dict[str, tuple[str, str, int, str]] = {
    "enter": ("Enter", "Enter", 13, "\r"),
    "tab": ("Tab", "Tab", 9, ""),
    "space": (" ", "Space", 32, " "),
    "backspace": ("Backspace", "Backspace", 8, ""),
    "delete": ("Delete", "Delete", 46, ""),
    "escape": ("Escape", "Escape", 27, ""),
    "insert": ("Insert", "Insert", 45, ""),
    "home": ("Home", "Home", 36, ""),
    "end": ("End", "End", 35, ""),
    "pageup": ("PageUp", "PageUp", 33, ""),
    "pagedown": ("PageDown", "PageDown", 34, ""),
    "left": ("ArrowLeft", "ArrowLeft", 37, ""),
    "up": ("ArrowUp", "ArrowUp", 38, ""),
    "right": ("ArrowRight", "ArrowRight", 39, ""),
    "down": ("ArrowDown", "ArrowDown", 40, ""),
    "alt": ("Alt", "AltLeft", 18, ""),
    "ctrl": ("Control", "ControlLeft", 17, ""),
    "meta": ("Meta", "MetaLeft", 91, ""),
    "shift": ("Shift", "ShiftLeft", 16, ""),
    "capslock": ("CapsLock", "CapsLock", 20, ""),
    **{f"f{i}": (f"F{i}", f"F{i}", 111 + i, "") for i in range(1, 13)},
}
ALIASES = {
    "return": "enter",
    "esc": "escape",
    "del": "delete",
    "control": "ctrl",
    "option": "alt",
    "cmd": "meta",
    "command": "meta",
    "super": "meta",
    "win": "meta",
    "spacebar": "space",
    "page_up": "pageup",
    "page_down": "pagedown",
    "pgup": "pageup",
    "pgdn": "pagedown",
    **{f"arrow{d}": d for d in ("left", "up", "right", "down")},
}
_PLAIN = "`1234567890-=[]\\;',./"
_SHIFTED = '~!@#$%^&*()_+{}|:"<>?'
_CODES = (
    *("Backquote", *(f"Digit{c}" for c in "1234567890"), "Minus", "Equal", "BracketLeft", "BracketRight"),
    *("Backslash", "Semicolon", "Quote", "Comma", "Period", "Slash"),
)
_VIRTUAL = [192, *[ord(c) for c in "1234567890"], 189, 187, 219, 221, 220, 186, 222, 188, 190, 191]
PUNCTUATION = {
    c: (code, vk, shifted)
    for row, shifted in ((_PLAIN, False), (_SHIFTED, True))
    for c, code, vk in zip(row, _CODES, _VIRTUAL, strict=True)
}


class UnknownKey(ValueError):
    """A key name that no keyboard has. `code` is its class on the pool's wire."""

    code = "unknown_key"


def _character(char: str) -> tuple[str, str, int, str, bool]:
    """(key, code, virtual key code, text, shifted) of a character; code "" and 0 when no key of a US layout has it."""
    if char == " ":
        return (*NAMED["space"], False)
    if char.isascii() and char.isalpha():
        return char, f"Key{char.upper()}", ord(char.upper()), char, char.isupper()
    code, vk, shifted = PUNCTUATION.get(char, ("", 0, False))
    return char, code, vk, char, shifted


def _press(key: str, code: str, vk: int, text: str, modifiers: int) -> Json:
    """The keyDown event; `text` is what it inserts."""
    event: Json = {"key": key, "code": code, "windowsVirtualKeyCode": vk, "modifiers": modifiers}
    event["type"] = "keyDown" if text else "rawKeyDown"
    if text:
        event["text"] = event["unmodifiedText"] = text
    return event


def _release(key: str, code: str, vk: int, modifiers: int) -> Json:
    return {"type": "keyUp", "key": key, "code": code, "windowsVirtualKeyCode": vk, "modifiers": modifiers}


def type_events(text: str) -> list[Json]:
    """Input.dispatchKeyEvent parameters that type `text`, one key at a time; a newline is Enter, a tab is Tab."""
    events = []
    for char in text.replace("\r\n", "\n"):
        if char in "\n\r\t":
            key, code, vk, insert = NAMED["tab" if char == "\t" else "enter"]
            shifted = False
        else:
            key, code, vk, insert, shifted = _character(char)
        modifiers = MODIFIERS["Shift"] if shifted else 0
        events += [_press(key, code, vk, insert, modifiers), _release(key, code, vk, modifiers)]
    return events


def chord_events(keys: tuple[str, ...]) -> list[Json]:
    """Parameters for all `keys` down in order, then up in reverse. Raises ValueError (empty chord), UnknownKey."""
    if not keys:
        raise ValueError("a key chord needs at least one key")
    down, up = [], []
    modifiers = 0
    for name in keys:
        lower = name.lower()
        named = NAMED.get(ALIASES.get(lower, lower))
        if named is not None:
            key, code, vk, text = named
        elif len(name) == 1 and name.isprintable():
            key, code, vk, text, _ = _character(name)
        else:
            known = ", ".join(sorted(NAMED))
            raise UnknownKey(f"unknown key {name!r}: use a single character or one of {known}")
        modifiers |= MODIFIERS.get(key, 0)
        down.append(_press(key, code, vk, "" if modifiers & ~MODIFIERS["Shift"] else text, modifiers))
        up.append((key, code, vk))
    released = []
    for key, code, vk in reversed(up):
        modifiers &= ~MODIFIERS.get(key, 0)
        released.append(_release(key, code, vk, modifiers))
    return down + released


def mouse(kind: str, x: int, y: int, *, button: str = "none", buttons: int = 0, count: int = 0) -> Json:
    """Parameters of one Input.dispatchMouseEvent; kind is Moved, Pressed or Released."""
    return {"type": f"mouse{kind}", "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": count}
