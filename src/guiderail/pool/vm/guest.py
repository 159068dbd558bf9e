"""Programs of the desktop: start them, feed them, see how they end, wherever they run (a `Guest`).

Guarantees: `run` returns within its limit, kills the whole process group of what it started, and keeps at most
OUTPUT_LIMIT bytes of output; nothing goes through a shell unless the caller's command is one.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from guiderail.pool.vm.processes import Process

OUTPUT_LIMIT = 64 << 20


class GuestError(RuntimeError):
    """The sandbox is gone or refuses an order. `number`: errno of a program that did not start, else 0."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True)
class Ran:
    """How a program ended: its exit status (negative = signal), and whether its time was up."""

    status: int
    output: bytes
    error: bytes
    late: bool = False


class Child(Protocol):
    """A started program."""

    pid: int

    def wait(self, timeout: float) -> int | None:
        """Its exit status, None when it still runs after `timeout` seconds."""
        ...

    def kill(self) -> None:
        """Kill its process group."""
        ...


class Guest(Protocol):
    """Where programs run."""

    environment: dict[str, str]
    home: str

    def spawn(
        self, argv: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str], cwd: str
    ) -> Child:
        """Start a program on three descriptors. Raises GuestError."""
        ...

    def processes(self, shared: bool = False) -> list[Process]:
        """All processes of the desktop's programs; with `shared` their memory counts what they share with others."""
        ...

    def kill(self, pid: int) -> None:
        """SIGKILL one process."""
        ...

    def end_all(self) -> None:
        """Kill all programs. Raises GuestError."""
        ...

    def files(self) -> int:
        """How many files the programs have made, links and folders counted; 0 where nobody counts."""
        ...


def work(guest: Guest) -> tuple[bool, float]:
    """See `settle.Work`."""
    found = guest.processes()
    return any(p.state in "RD" for p in found), sum(p.used for p in found)


def start(guest: Guest, argv: Sequence[str], *, cwd: str = "", env: Mapping[str, str] | None = None) -> Child:
    """Start a program that lives on; its output is dropped. Raises GuestError."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return guest.spawn(argv, null, null, null, {**guest.environment, **(env or {})}, cwd or guest.home)
    finally:
        os.close(null)


def run(
    guest: Guest,
    argv: Sequence[str],
    *,
    data: bytes = b"",
    timeout: float = 30.0,
    cwd: str = "",
    limit: int = OUTPUT_LIMIT,
) -> Ran:
    """Run a program to its end with `data` on its standard input. Raises GuestError when it does not start."""
    into, out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    ours = [into[1], out[0], err[0]]
    try:
        try:
            child = guest.spawn(argv, into[0], out[1], err[1], guest.environment, cwd or guest.home)
        finally:
            for fd in (into[0], out[1], err[1]):
                os.close(fd)
        texts = {out[0]: bytearray(), err[0]: bytearray()}
        end = time.monotonic() + timeout
        late = not _exchange(ours, texts, data, end, limit, child)
        status = child.wait(0.0 if late else max(0.0, end - time.monotonic()))
        late = late or status is None
        child.kill()  # also what it left running in its group
        if status is None:
            status = child.wait(2.0)
        final = -signal.SIGKILL if status is None else status
        return Ran(final, bytes(texts[out[0]]), bytes(texts[err[0]]), late)
    finally:
        for fd in ours:  # without what `_exchange` closed: its number may be another file's by now
            os.close(fd)


def _exchange(ours: list[int], texts: dict[int, bytearray], data: bytes, end: float, limit: int, child: Child) -> bool:
    """Write and read until the program has ended and its pipes are dry; False when first time is up or the output full.

    A program that went to the background may hold the pipes open: once the one we started has ended, they are read
    for a moment more, not for ever.
    """
    feed, view = ours[0], memoryview(data)

    def fed() -> None:
        ours.remove(feed)
        os.close(feed)

    with selectors.DefaultSelector() as box:
        for fd in ours:
            os.set_blocking(fd, False)
        for fd in texts:
            box.register(fd, selectors.EVENT_READ)
        if data:
            box.register(feed, selectors.EVENT_WRITE)
        else:
            fed()
        grace = 0.0
        while box.get_map():
            now = time.monotonic()
            if now > end:
                return False
            if not grace and child.wait(0.0) is not None:
                grace = now + 0.3
            if grace and now > grace:
                return True
            for key, _ in box.select(0.02 if not grace else 0.05):
                fd = key.fd
                if fd == feed:
                    try:
                        view = view[os.write(fd, view[:65536]) :]
                    except BrokenPipeError:
                        view = view[:0]
                    if not view:
                        box.unregister(fd)
                        fed()
                    continue
                got = os.read(fd, 1 << 18)
                if got:
                    texts[fd] += got[: max(0, limit - len(texts[fd]))]
                    if len(texts[fd]) >= limit:
                        return False  # more is not kept, so it need not run on
                else:
                    box.unregister(fd)
    return True
