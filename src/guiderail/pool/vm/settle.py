"""When has the screen settled? A rule in place of a sleep.

The screen has settled when, in this order: the active window answered a ping sent after the input (it has read it), no
pixel changed for `quiet_s`, and in that time the programs neither wanted the processor nor used more than a trifle of
it. If another window has become active meanwhile, it is asked too. Pixels alone do not suffice: an office program
draws its window, pauses, and then is ready; a starting program shows nothing for long.
Guarantees: returns within `limit_s` (plus one look), and says whether it settled. Knows nothing of what was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

LOOK_S = 0.012
TRIFLE = 0.25  # share of the quiet time that programs may compute (blinking cursors, timers)


class Screen(Protocol):
    """What is drawn."""

    def grab(self) -> bytes:
        """The pixels now."""
        ...

    def same(self, frame: bytes) -> bool:
        """Whether the pixels are still those of `frame`."""
        ...


class Work(Protocol):
    """What the programs are doing."""

    def work(self) -> tuple[bool, float]:
        """(whether one wants the processor now, seconds of it that all have used so far)."""
        ...


@dataclass(frozen=True)
class Rule:
    """`quiet_s`: how long nothing may happen; `limit_s`: when waiting ends anyway."""

    quiet_s: float = 0.06
    limit_s: float = 3.0


@dataclass(frozen=True)
class Settled:
    """What was seen: `ok` False when the limit came first; times in milliseconds."""

    ok: bool
    frame: bytes
    ping_ms: float
    total_ms: float


def settle(
    rule: Rule,
    screen: Screen,
    programs: Work,
    active: Callable[[], int],
    ping: Callable[[int], bool],
    patience: Callable[[int], float] = lambda window: 0.0,
) -> Settled:
    """Wait by the rule. `active()`: the active window; `ping(window)`: it has read its events;
    `patience(window)`: how long nothing may happen in that window, where the rule's time does not suffice."""
    start = time.monotonic()
    end = start + rule.limit_s
    asked = active()
    if asked:
        ping(asked)
    ping_ms = 1000 * (time.monotonic() - start)
    frame, since = screen.grab(), time.monotonic()
    _, used = programs.work()
    while True:
        time.sleep(LOOK_S)
        same, now = screen.same(frame), time.monotonic()
        if not same:
            frame = screen.grab()
        wants, total = programs.work()
        if not same or wants or total - used > max(TRIFLE * (now - since), 0.02):
            since, used = now, total
        elif now - since >= rule.quiet_s:
            there = active()
            if there not in (0, asked):
                asked = there
                ping(there)
                since, used = time.monotonic(), programs.work()[1]
            elif now - since >= patience(there):
                return Settled(True, frame, ping_ms, 1000 * (now - start))
        if now > end:
            return Settled(False, frame, ping_ms, 1000 * (now - start))
