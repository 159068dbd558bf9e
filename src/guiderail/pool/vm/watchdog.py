"""Memory of the programs: the largest process is killed when all together have too much; all when they made too many
files, which take the kernel's memory and which nobody can tell the maker of.

In place of RLIMIT_AS, which browsers do not survive (they reserve address space that they never use), and of a memory
cgroup, which needs root. Counts memory of a process's own and what it shares by mapping (memory that no process maps
programs cannot make: see `seccomp`), every `every_s`: a program may pass the limit for that long.
"""

from __future__ import annotations

import logging
import threading

from guiderail.pool.vm.desktop import Desktop
from guiderail.pool.vm.guest import GuestError
from guiderail.pool.vm.sandbox import MB

log = logging.getLogger("guiderail.pool.vm")
EVERY_S = 0.25
FILES = 300_000


def check(desktop: Desktop, limit_mb: int) -> str:
    """Kill the largest process if all have more than `limit_mb`; what was done, "" if nothing."""
    found = desktop.guest.processes(shared=True)
    total = sum(p.memory for p in found)
    if total <= limit_mb * MB:
        return ""
    worst = max(found, key=lambda p: p.memory)
    desktop.guest.kill(worst.pid)
    return _noted(
        desktop, f"killed {worst.name} ({worst.memory // MB} MB): the programs had {total // MB} of {limit_mb} MB"
    )


def check_files(desktop: Desktop, limit: int) -> str:
    """Kill all programs if they have made more than `limit` files; what was done, "" if nothing."""
    made = desktop.guest.files()
    if made <= limit:
        return ""
    desktop.guest.end_all()
    return _noted(desktop, f"killed all programs: they had made {made} files, more than {limit}")


def _noted(desktop: Desktop, note: str) -> str:
    desktop.notes.append(note)
    del desktop.notes[:-20]
    log.warning("%s", note)
    return note


def watch(desktop: Desktop, limit_mb: int, every_s: float = EVERY_S) -> threading.Event:
    """Check for ever in a thread; set the returned event to stop it."""
    stop = threading.Event()

    def loop() -> None:
        allowed = FILES
        while not stop.wait(every_s):
            try:
                check(desktop, limit_mb)
                if check_files(desktop, allowed):
                    allowed = desktop.guest.files() + FILES // 10  # or nobody could look at what is left
                elif allowed > FILES and desktop.guest.files() < FILES:
                    allowed = FILES  # it was reset
            except (OSError, GuestError) as e:
                log.warning("the watchdog cannot look: %s", e)  # the slot's sandbox is gone, or about to be
                return

    threading.Thread(target=loop, daemon=True, name="watchdog").start()
    return stop
