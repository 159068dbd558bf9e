"""Programs that lose a key pressed again too soon, and how long they are given.

A calculator whose keys are toggle buttons shows a key as pressed for a while: the press sets the button and starts a
timer that lets go of it. The same key within that while only lets go of the button, and its digit is lost: 12+23 typed
at the speed of a machine came to 15. No keyboard mends that; a hand is slower than the timer, and so is `Pace.again`.
Guarantees: elsewhere nothing is waited for; one action is held up for LIMIT_S at most, then its keys follow at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FLASH_S = {"galculator": 0.11}
"""Seconds that a program shows a key as pressed, by the instance of its WM_CLASS (galculator's timer: 100 ms)."""
LIMIT_S = 5.0
BUTTON_S = 0.28
"""Quiet that a dialog needs: GTK shows a dialog's button as pressed for 250 ms before it acts, and neither draws nor
computes meanwhile; a file dialog presses its own when its "Save" was clicked, so the file comes after that time."""

START_QUIET_S = {"libreoffice": 1.0, "soffice": 1.0}
"""Quiet that a program's first window needs, by the instance of its WM_CLASS: an office program shows a bare window,
rests, and then puts its bars and its document there; keys that come before are lost."""


class Pace:
    """Of one keyboard. `barrier()` returns when the active program has read what was sent to it."""

    def __init__(self, barrier: Callable[[], None]) -> None:
        self.barrier = barrier
        self.flash = 0.0
        self.pressed: dict[int, float] = {}
        self.left = LIMIT_S

    def begin(self, app: str) -> None:
        """An action begins, on a window of class `app` ("instance.Class")."""
        self.flash, self.left = flash_of(app), LIMIT_S

    def again(self, key: int) -> None:
        """Return when `key` may be pressed; it counts as pressed from then on."""
        if self.flash and time.monotonic() - self.pressed.get(key, 0.0) < self.flash and self.left > 0:
            self.barrier()  # the timer runs
            time.sleep(self.flash)
            self.barrier()  # and what it does is done
            self.left -= self.flash
        self.pressed[key] = time.monotonic()


def flash_of(app: str) -> float:
    """Seconds of FLASH_S for a window of class `app`, 0 for a program that takes keys as they come."""
    return FLASH_S.get(app.partition(".")[0].lower(), 0.0)


def start_quiet_of(app: str) -> float:
    """Seconds of START_QUIET_S for the window of class `app` that a program opens with, 0 for most."""
    return START_QUIET_S.get(app.partition(".")[0].lower(), 0.0)
