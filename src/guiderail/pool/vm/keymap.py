"""From characters and key names to key presses on the keyboard that the X server really has.

Guarantees: `plan` gives the keycode and shift of every character: by lookup where the layout has it, else by lending
it a keycode that nothing uses (see `Keyboard.lend`), so `<`, accents, CJK and emoji arrive as themselves. A lent
keycode is not lent again while its key presses may still be unread: the caller says when they are (`settled`).
A key name that no keyboard has is a ValueError, before anything is pressed.
"""

from __future__ import annotations

from dataclasses import dataclass

from guiderail.envs.keys import ALIASES, NAMED, UnknownKey
from guiderail.pool.vm.x11 import X11

SHIFT, CAPS, XF86 = 0xFFE1, 0xFFE5, 0x10080000
CONTROL = {"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B}
KEYSYMS = {
    "enter": 0xFF0D,
    "tab": 0xFF09,
    "space": 0x20,
    "backspace": 0xFF08,
    "delete": 0xFFFF,
    "escape": 0xFF1B,
    "insert": 0xFF63,
    "home": 0xFF50,
    "end": 0xFF57,
    "pageup": 0xFF55,
    "pagedown": 0xFF56,
    "left": 0xFF51,
    "up": 0xFF52,
    "right": 0xFF53,
    "down": 0xFF54,
    "alt": 0xFFE9,
    "ctrl": 0xFFE3,
    "meta": 0xFFEB,
    "shift": SHIFT,
    "capslock": CAPS,
    **{f"f{i}": 0xFFBD + i for i in range(1, 13)},
}
assert KEYSYMS.keys() == NAMED.keys(), "every key of a page is a key of a desktop"
EXTRA = {"menu": 0xFF67, "apps": 0xFF67, "printscreen": 0xFF61, "numlock": 0xFF7F, "pause": 0xFF13}
MODIFIERS = frozenset(KEYSYMS[n] for n in ("alt", "ctrl", "meta", "shift"))


@dataclass(frozen=True)
class Stroke:
    """One key: its keycode, and whether shift goes with it."""

    keycode: int
    shift: bool = False


def keysym(char: str) -> int:
    """The keysym of a character: Latin-1 is itself, the rest 0x1000000 + code point (keysymdef.h)."""
    if char in CONTROL:
        return CONTROL[char]
    code = ord(char)
    return code if 0x20 <= code <= 0x7E or 0xA0 <= code <= 0xFF else 0x1000000 + code


def spare(row: list[int]) -> bool:
    """Whether a keycode can be lent: it has no keysym, or only one of the multimedia keys that nobody types."""
    return all(sym == 0 or XF86 <= sym < XF86 + 0x10000 for sym in row)


def _in_long_runs(codes: list[int]) -> list[int]:
    """The same keycodes, those with the most free neighbours first."""
    return [code for run in sorted(_runs(codes), key=len, reverse=True) for code in run]


def _runs(codes: list[int]) -> list[list[int]]:
    """Ascending keycodes, neighbours together."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and runs[-1][-1] == code - 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    return runs


class Keyboard:
    """The server's keyboard."""

    def __init__(self, x: X11) -> None:
        self.x = x
        self.original = x.keyboard()
        self.read()

    def read(self) -> None:
        """Look at the mapping (again): which keysym lies where, which keycodes are free."""
        rows = self.x.keyboard()
        self.width = len(rows[0])
        self.strokes: dict[int, Stroke] = {}
        for offset, row in enumerate(rows):
            for level in (0, 1):
                if level < len(row) and row[level]:
                    self.strokes.setdefault(row[level], Stroke(self.x.min_keycode + offset, bool(level)))
        self.free = _in_long_runs([self.x.min_keycode + i for i, row in enumerate(rows) if i and spare(row)])
        self.lent: dict[int, int] = {}  # keycode -> keysym, the one used longest ago first
        self.unread: set[int] = set()

    def restore(self) -> None:
        """The mapping as it was at first, whatever anybody did to it.

        Only keys that differ are told: the server works out the actions of every key it is told anew, and a control
        key that was told in passing is none any more.
        """
        rows = self.x.keyboard()
        changed = [i for i, row in enumerate(self.original) if i >= len(rows) or rows[i] != row]
        for run in _runs([self.x.min_keycode + i for i in changed]):
            first = run[0] - self.x.min_keycode
            self.x.set_keys(run[0], self.original[first : first + len(run)])
        self.x.sync()
        self.read()

    def settled(self) -> None:
        """All presses so far have been read by the programs they were for."""
        self.unread.clear()

    def find(self, char: str) -> Stroke | None:
        """The stroke of a character that the keyboard has now."""
        wanted = keysym(char)
        found = self.strokes.get(wanted)
        if found is None:
            for keycode, lent in self.lent.items():
                if lent == wanted:
                    return Stroke(keycode)
        return found

    def lend(self, chars: str) -> int:
        """Lend keycodes to the characters at the beginning of `chars` that need one; how many are typable then.

        Less than all when the keycodes do not suffice: type those, let them be read, call `settled`, come back.
        """
        new: dict[int, int] = {}
        typable = len(chars)
        for i, char in enumerate(chars):
            stroke = self.find(char)
            if stroke is None:
                keycode = next((k for k in self.free if k not in self.lent), 0)
                keycode = keycode or next((k for k in self.lent if k not in self.unread), 0)
                if not keycode:
                    typable = i
                    break
                self.lent.pop(keycode, None)
                self.lent[keycode] = new[keycode] = keysym(char)
                stroke = Stroke(keycode)
            if stroke.keycode in self.lent:
                self.lent[stroke.keycode] = self.lent.pop(stroke.keycode)
                self.unread.add(stroke.keycode)
        self._tell(new)
        return typable

    def _tell(self, new: dict[int, int]) -> None:
        """Map keycodes to keysyms, neighbours in one request: window managers grab all keys anew at each."""
        for run in _runs(sorted(new)):
            self.x.set_keys(run[0], [[new[k]] * self.width for k in run])

    def chord(self, names: tuple[str, ...]) -> list[Stroke]:
        """Strokes of a chord, in order. Raises ValueError (empty), UnknownKey."""
        if not names:
            raise ValueError("a key chord needs at least one key")
        named = [n.lower() for n in names]
        named = [ALIASES.get(n, n) for n in named]
        modified = any(KEYSYMS.get(n) in MODIFIERS - {SHIFT} for n in named)
        strokes = []
        for name, lower in zip(names, named, strict=True):
            sym = KEYSYMS.get(lower) or EXTRA.get(lower)
            if sym is None and len(name) != 1:
                raise UnknownKey(f"unknown key {name!r}: use a single character or one of {', '.join(sorted(KEYSYMS))}")
            if sym is not None:
                if sym not in self.strokes:
                    raise UnknownKey(f"this keyboard has no key {name!r}")
                strokes.append(Stroke(self.strokes[sym].keycode))
                continue
            char = name.lower() if modified else name  # "Ctrl+C" means the key c, not a capital
            if not char.isprintable():
                raise UnknownKey(f"unknown key {name!r}: not a printable character")
            self.lend(char)
            found = self.find(char)
            if found is None:
                raise UnknownKey(f"no keycode is free for {name!r}")
            strokes.append(found)
        return strokes
