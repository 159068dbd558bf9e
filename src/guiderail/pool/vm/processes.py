"""What the desktop's processes do, read from an open /proc folder: this one's, or that of a sandbox, from outside.

Guarantees: a process that ends meanwhile is left out, never an error.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One process as /proc tells it. `memory`: bytes of its own (not shared, unless asked for), `used`: seconds of
    processor time."""

    pid: int
    name: str
    state: str
    used: float
    memory: int


def read_processes(proc: int, skip: frozenset[int], shared: bool = False) -> list[Process]:
    """Processes of an open /proc folder (a directory descriptor), without `skip`; `shared`: see `Guest.processes`."""
    found = []
    for name in os.listdir(proc):
        if not name.isdigit() or int(name) in skip:
            continue
        try:
            stat, statm = _read(f"{name}/stat", proc), _read(f"{name}/statm", proc)
            status = _read(f"{name}/status", proc) if shared else b""
        except (OSError, ProcessLookupError):
            continue  # it ended while we looked
        head, _, tail = stat.rpartition(b")")
        field, pages = tail.split(), statm.split()
        used = (int(field[11]) + int(field[12])) / TICKS_PER_S
        own = PAGE * max(0, int(pages[1]) - int(pages[2]))
        if row := re.search(rb"^RssShmem:\s+(\d+) kB", status, re.MULTILINE):  # no other file of /proc tells it apart
            own += 1024 * int(row[1])
        title = head.partition(b"(")[2].decode(errors="replace")
        found.append(Process(int(name), title, field[0].decode(), used, own))
    return found


def _read(path: str, folder: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
