"""Memory of the programs: the largest process is killed when all together have too much.

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


def check(desktop: Desktop, limit_mb: int) -> str:
    """Kill the largest process if all have more than `limit_mb`; what was done, "" if nothing."""
    found = desktop.guest.processes(shared=True)
    total = sum(p.memory for p in found)
    if total <= limit_mb * MB:
        return ""
    worst = max(found, key=lambda p: p.memory)
    desktop.guest.kill(worst.pid)
    note = f"killed {worst.name} ({worst.memory // MB} MB): the programs had {total // MB} of {limit_mb} MB"
    desktop.notes.append(note)
    del desktop.notes[:-20]
    log.warning("%s", note)
    return note


def watch(desktop: Desktop, limit_mb: int, every_s: float = EVERY_S) -> threading.Event:
    """Check for ever in a thread; set the returned event to stop it."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(every_s):
            try:
                check(desktop, limit_mb)
            except (OSError, GuestError) as e:
                log.warning("the watchdog cannot look: %s", e)  # the slot's sandbox is gone, or about to be
                return

    threading.Thread(target=loop, daemon=True, name="watchdog").start()
    return stop
