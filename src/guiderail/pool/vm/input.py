"""Typed actions as XTEST events.

Guarantees: an action is checked whole before its first event (ValueError: nothing was done); every button and key that
it presses it releases, also when it fails half way; text arrives as it is written whatever the layout and CapsLock;
points are mapped to pixels by `to_pixel`, so they lie on the screen. Waits are bounded by MAX_WAIT_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from guiderail.actions.types import Action, Click, Drag, Key, LongPress, Move, Scroll, Type, Wait, to_pixel
from guiderail.pool.vm.keymap import CAPS, SHIFT, Keyboard, Stroke
from guiderail.pool.vm.pace import Pace
from guiderail.pool.vm.x11 import BUTTON_PRESS, BUTTON_RELEASE, KEY_PRESS, KEY_RELEASE, MOTION, X11

BUTTONS = {"left": 1, "middle": 2, "right": 3}
UP, DOWN, LEFT, RIGHT = 4, 5, 6, 7
LOCK_MASK, HELD_KEYS, HELD_BUTTONS = 0x2, 0xFD, 0x1F00
MAX_CLICKS, MAX_NOTCHES, MAX_WAIT_S = 3, 100, 30.0
DRAG_STEPS, DRAG_PAUSE_S, DROP_PAUSE_S = 12, 0.008, 0.08
BATCH = 64  # keys between two looks whether the server keeps up


class Input:
    """Mouse and keyboard of one screen. `barrier()` returns when the programs have read what was pressed so far,
    `app()` tells the class of the active window."""

    def __init__(self, x: X11, barrier: Callable[[], None], app: Callable[[], str]) -> None:
        self.x, self.barrier, self.app = x, barrier, app
        self.keyboard = Keyboard(x)
        self.pace = Pace(barrier)

    def do(self, action: Action) -> None:
        """Carry out `action`. Raises ValueError with nothing done, XError."""
        self.pace.begin(self.app())
        match action:
            case Click(x, y, button, count):
                if not 1 <= count <= MAX_CLICKS:
                    raise ValueError(f"Click.count = {count}: 1 to {MAX_CLICKS} clicks at once")
                self._move(x, y)
                for _ in range(count):
                    self.pace.again(-BUTTONS[button])
                    self._press(BUTTONS[button])
            case Move(x, y):
                self._move(x, y)
            case LongPress(x, y, seconds):
                self._check(seconds)
                self._move(x, y)
                self._press(1, seconds)
            case Drag(x, y, x2, y2):
                self._drag(to_pixel(x, y, self.x.width, self.x.height), to_pixel(x2, y2, self.x.width, self.x.height))
            case Scroll(x, y, dx, dy):
                if max(abs(dx), abs(dy)) > MAX_NOTCHES:
                    raise ValueError(f"Scroll of {dx}, {dy}: at most {MAX_NOTCHES} notches at once")
                self._move(x, y)
                for wheel, notches in ((DOWN if dy > 0 else UP, dy), (RIGHT if dx > 0 else LEFT, dx)):
                    for _ in range(abs(notches)):
                        self._press(wheel)
            case Type(text):
                self._type(text)
            case Key(keys):
                self._chord(self.keyboard.chord(keys))
            case Wait(seconds):
                self._check(seconds)
                time.sleep(seconds)
            case _:
                raise ValueError(f"{type(action).__name__} is no action of mouse and keyboard")
        self.x.sync()

    def release_all(self) -> None:
        """Let go of every button and modifier, CapsLock off, pointer in the middle, keys as at first."""
        _, _, mask = self.x.pointer()
        for i, button in enumerate(range(1, 6)):
            if mask & (0x100 << i):
                self.x.fake(BUTTON_RELEASE, button)
        for sym in (SHIFT, SHIFT + 1, 0xFFE3, 0xFFE4, 0xFFE9, 0xFFEA, 0xFFEB, 0xFFEC):
            if mask & HELD_KEYS and (stroke := self.keyboard.strokes.get(sym)):
                self.x.fake(KEY_RELEASE, stroke.keycode)
        if mask & LOCK_MASK:
            self._tap(self.keyboard.strokes[CAPS])
        self.x.fake(MOTION, 0, self.x.width // 2, self.x.height // 2)
        self.keyboard.restore()
        self.x.sync()

    # -- inside -------------------------------------------------------------------------------------------------------
    def _check(self, seconds: float) -> None:
        if not 0 <= seconds <= MAX_WAIT_S:
            raise ValueError(f"{seconds:g} seconds: 0 to {MAX_WAIT_S:g} can be waited at once")

    def _move(self, x: float, y: float) -> None:
        self.x.fake(MOTION, 0, *to_pixel(x, y, self.x.width, self.x.height))

    def _press(self, button: int, seconds: float = 0.0) -> None:
        self.x.fake(BUTTON_PRESS, button)
        try:
            if seconds:
                time.sleep(seconds)
        finally:
            self.x.fake(BUTTON_RELEASE, button)

    def _drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Slowly enough that programs see the way: drag and drop begins after a few pixels and asks its target."""
        self.x.fake(MOTION, 0, *start)
        self.x.fake(BUTTON_PRESS, 1)
        try:
            for i in range(1, DRAG_STEPS + 1):
                time.sleep(DRAG_PAUSE_S)
                at = [round(a + (b - a) * i / DRAG_STEPS) for a, b in zip(start, end, strict=True)]
                self.x.fake(MOTION, 0, *at)
            time.sleep(DROP_PAUSE_S)
        finally:
            self.x.fake(BUTTON_RELEASE, 1)

    def _tap(self, stroke: Stroke) -> None:
        self.x.fake(KEY_PRESS, stroke.keycode)
        self.x.fake(KEY_RELEASE, stroke.keycode)

    def _chord(self, strokes: list[Stroke]) -> None:
        shift = self.keyboard.strokes[SHIFT]
        if any(s.shift for s in strokes) and shift not in strokes:
            strokes = [shift, *strokes]
        for stroke in strokes:
            self.pace.again(stroke.keycode)
            self.x.fake(KEY_PRESS, stroke.keycode)
        for stroke in reversed(strokes):
            self.x.fake(KEY_RELEASE, stroke.keycode)

    def _type(self, text: str) -> None:
        text = text.replace("\r\n", "\n")
        if bad := next((c for c in text if not (c.isprintable() or c in "\n\r\t" or ord(c) in ODD)), ""):
            raise ValueError(f"Type.text holds {bad!r}, which no keyboard types")
        locked = bool(self.x.pointer()[2] & LOCK_MASK)
        if locked:
            self._tap(self.keyboard.strokes[CAPS])
        try:
            while text:
                typable = self.keyboard.lend(text)
                self._strokes(text[:typable])
                text = text[typable:]
                if text:
                    self.barrier()
                    self.keyboard.settled()
        finally:
            if locked:
                self._tap(self.keyboard.strokes[CAPS])

    def _strokes(self, text: str) -> None:
        shift = self.keyboard.strokes[SHIFT].keycode
        for i, char in enumerate(text):
            stroke = self.keyboard.find(char)
            assert stroke is not None, char
            self.pace.again(stroke.keycode)
            if stroke.shift:
                self.x.fake(KEY_PRESS, shift)
            self._tap(stroke)
            if stroke.shift:
                self.x.fake(KEY_RELEASE, shift)
            if i % BATCH == BATCH - 1:
                self.x.sync()


ODD = {0xA0, 0xAD, *range(0x2000, 0x2010), 0x202F, 0x205F, 0x3000, 0xFE0E, 0xFE0F}  # spaces and joiners: not printable
