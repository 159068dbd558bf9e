"""What every side of `env_compare.py` does alike: the tasks, the clicks, the clock and the CPU account.

Runs under any side's interpreter (standard library and psutil only). Guarantees: the CPU account covers this process
and all below it, those included that ended meanwhile: a parent's account takes over a child that it waited for, and
orphans come to this process (it is their subreaper) and are left as zombies, whose account can still be read.
Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

# Template -> where to click, in pixels of the task's 160x210. The first three clicks change the picture (a box ticked,
# an option chosen, a tab opened), the others fall on an empty place; none ends the episode, so that all sides do the
# same work per reset.
WORK: dict[str, tuple[int, int]] = {
    "click-checkboxes": (12, 62),
    "click-option": (12, 62),
    "click-tab-2": (60, 67),
    "click-button": (150, 205),
    "click-dialog": (150, 205),
    "click-color": (150, 205),
}
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of what is orphaned below it, and SIGTERM an orderly end. Raises OSError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def cpu_seconds() -> float:
    """User plus system seconds of this process and all that ever was below it."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def end_leftovers() -> None:
    """Kill all that is still below this process, and wait for it: browsers that outlived the one who started them."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    until = time.monotonic() + 10.0
    while time.monotonic() < until and any(alive(process) for process in left):
        time.sleep(0.01)


def alive(process: psutil.Process) -> bool:
    """Whether it runs (a zombie does not)."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class Tally:
    """What one side did while the clock ran."""

    steps: int = 0
    resets: int = 0
    ended: int = 0  # episodes that a click ended
    wall_s: float = 0.0
    cpu_s: float = 0.0
    picture: tuple[int, int] = (0, 0)  # width, height of the last one
    step_times: list[float] = field(default_factory=list)
    reset_times: list[float] = field(default_factory=list)

    def figures(self, **about: Any) -> dict[str, Any]:
        """Everything to report; `about` first."""
        return about | {
            "steps": self.steps,
            "resets": self.resets,
            "ended": self.ended,
            "picture": list(self.picture),
            "wall_s": round(self.wall_s, 2),
            "cpu_s": round(self.cpu_s, 2),
            "steps_per_s": round(self.steps / self.wall_s, 2),
            "steps_per_cpu_s": round(self.steps / self.cpu_s, 2),
            "step_ms_p50": round(1000 * statistics.median(self.step_times), 2),
            "reset_ms_p50": round(1000 * statistics.median(self.reset_times), 2),
        }


def clock(tally: Tally) -> Callable[[], None]:
    """Start wall clock and CPU account; the function returned stops them and adds to `tally`."""
    cpu, wall = cpu_seconds(), time.perf_counter()

    def stop() -> None:
        tally.wall_s += time.perf_counter() - wall
        tally.cpu_s += cpu_seconds() - cpu

    return stop


def seeds(page: int = 0) -> Iterator[int]:
    """Endless task seeds, other ones for each page."""
    return itertools.count(1 + 10_000 * page)


def play(
    tally: Tally,
    reset: Callable[[int], object],
    step: Callable[[int, int], bool],
    at: tuple[int, int],
    episode: int,
    seconds: float,
) -> None:
    """Whole episodes of `episode` steps until the clock says stop, at least one.

    `reset` takes a seed; `step` says whether the episode ended. Both return when they have a picture. One reset and
    one step go ahead untimed.
    """
    source = seeds()
    reset(next(source))
    step(*at)
    stop = clock(tally)
    until = time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        reset(next(source))
        tally.reset_times.append(time.perf_counter() - began)
        tally.resets += 1
        for _ in range(episode):
            began = time.perf_counter()
            done = step(*at)
            tally.step_times.append(time.perf_counter() - began)
            tally.steps += 1
            if done:
                tally.ended += 1
                break
        if time.perf_counter() >= until:
            break
    stop()


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options that every side has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="timed seconds, shared among the templates")
    parser.add_argument("--episode", type=int, default=5, help="steps per reset")
    parser.add_argument("--browser", default="", help="path of a Chromium; empty = what this side finds")
    return parser


def report(figures: dict[str, Any]) -> None:
    """Print the figures as the last line of this side's output, and take the adopted zombies away: all is counted."""
    print(json.dumps(figures), flush=True)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
