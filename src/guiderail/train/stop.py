"""Stop cleanly: SIGTERM and Ctrl-C end a training loop at a border where its state is whole.

Guarantees: while weights are being changed a signal only asks; inside `with stop.interruptible()` (waiting for
rollouts) it raises at once. The previous handlers are restored. Works in the main thread; elsewhere it never fires.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Stopped(SystemExit):
    """Training was asked to stop and did; state is saved. Exit status 128 + signal number."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


class Stop:
    """`with Stop() as stop:` installs handlers; `stop.check()` raises `Stopped` once a signal has come."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._eager = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for s in (signal.SIGTERM, signal.SIGINT):
                self._old[s] = signal.signal(s, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for s, old in self._old.items():
            signal.signal(s, old)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        if self._eager:
            self._eager = False
            raise Stopped(signum)

    def check(self) -> None:
        """Raise `Stopped` when a signal has come."""
        if self.signum is not None:
            raise Stopped(self.signum)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises `Stopped` at once (nothing that must stay whole is being changed)."""
        self.check()
        self._eager = True
        try:
            yield
        finally:
            self._eager = False
