"""Rollout workers: each plays one wave at a time, in a process of its own or in a thread, beside the trainer.

Guarantees: `poll` gives the finished wave, or raises what went wrong in words: `WorkerError` when playing failed,
`WorkerDied` when the process is gone without a word; it never blocks. A worker that is closed, or whose trainer dies in
any way, is gone. Orders and waves travel as files in the worker's folder. Does not decide what is played, or restart
anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import psutil

from guiderail.errors import Explained
from guiderail.rollout.wave import Order, Wave, read_wave, write_wave
from guiderail.services import service, tail

POLL_S = 0.02
JOIN_S = 60.0


class WorkerError(Explained, RuntimeError):
    """A wave could not be played; the message says which, why, and where to look."""


class WorkerDied(WorkerError):
    """A worker's process ended without saying why (killed, out of memory)."""


class Quit(Exception):
    """Ends a wave that is being played in a thread."""


class Worker(Protocol):
    """Plays one wave at a time."""

    def start(self, order: Order) -> None:
        """Begin a wave; returns at once. Only when idle."""
        ...

    def poll(self) -> Callable[[], Wave] | None:
        """What reads the finished wave, once; None while it is being played. Raises WorkerError."""
        ...

    def close(self) -> None:
        """End it, whatever it does."""
        ...


class ThreadWorker:
    """Plays in a thread of this process. play: plays a wave; it calls `check()` of its second argument now and then,
    which raises `Quit` once the worker is closed."""

    def __init__(self, play: Callable[[Order, Callable[[], None]], Wave], name: str = "rollout") -> None:
        self.play, self.name = play, name
        self._quit = threading.Event()
        self._thread: threading.Thread | None = None
        self._done: Wave | WorkerError | None = None

    def _check(self) -> None:
        if self._quit.is_set():
            raise Quit

    def start(self, order: Order) -> None:
        """See `Worker`."""

        def run() -> None:
            try:
                self._done = self.play(order, self._check)
            except Quit:
                pass
            except BaseException as e:
                error = WorkerError(f"{self.name}: wave {order.wave} (weights {order.version}): {worded(e)}")
                error.__cause__ = e
                self._done = error

        self._done = None
        self._thread = threading.Thread(target=run, name=self.name, daemon=True)
        self._thread.start()

    def poll(self) -> Callable[[], Wave] | None:
        """See `Worker`."""
        done, self._done = self._done, None
        if isinstance(done, WorkerError):
            raise done
        return None if done is None else lambda: done

    def close(self) -> None:
        """See `Worker`."""
        self._quit.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)


class ProcessWorker:
    """Plays in a process of its own, which runs `attend` on `folder`. command: what to run; env: added to ours."""

    def __init__(self, command: Sequence[str], folder: Path, name: str, env: Mapping[str, str] | None = None) -> None:
        self.folder, self.name = folder, name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.log = folder.with_suffix(".log")
        self._order: Order | None = None
        self._stack = ExitStack()
        self._process = psutil.Process(
            self._stack.enter_context(service(list(command), name, env=env, log=self.log, grace=3.0)).pid
        )

    def start(self, order: Order) -> None:
        """See `Worker`."""
        self._order = order
        text = json.dumps(asdict(order) | {"weights": str(order.weights)})
        beside = self.folder / ".order.tmp"
        beside.write_text(text)
        os.replace(beside, self.folder / f"order-{order.wave:08d}.json")

    def poll(self) -> Callable[[], Wave] | None:
        """See `Worker`."""
        order = self._order
        alive = self._alive()  # asked first: what it left behind is then all it will leave
        if order is None:
            if not alive:
                raise self._dead("while it had nothing to do")
            return None
        found, said = self.folder / f"wave-{order.wave:08d}", self.folder / f"wave-{order.wave:08d}.error"
        if found.exists():
            self._order = None
            return lambda: taken(found)
        if said.exists():
            raise WorkerError(f"{self._what(order)}: {said.read_text()}\n  its log: {self.log}")
        if not alive:
            raise self._dead(f"while it played {self._what(order)}")
        return None

    def _alive(self) -> bool:
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def _what(self, order: Order) -> str:
        return f"{self.name}: wave {order.wave} (weights {order.version})"

    def _dead(self, when: str) -> WorkerDied:
        told = tail(self.log)
        return WorkerDied(f"{self.name}: its process {self._process.pid} died {when}; end of {self.log}:\n{told}")

    def close(self) -> None:
        """See `Worker`."""
        self._stack.close()


def taken(folder: Path) -> Wave:
    """Read a wave and remove its folder."""
    wave = read_wave(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return wave


def attend(folder: Path, play: Callable[[Order], Wave]) -> None:
    """Play every order that comes into `folder`, until killed: the other end of `ProcessWorker`. An error is written
    beside, and ends this process."""
    while True:
        orders = sorted(folder.glob("order-????????.json"))
        if not orders:
            time.sleep(POLL_S)
            continue
        tree = json.loads(orders[0].read_text())
        order = Order(**tree | {"weights": Path(tree["weights"])})
        final = folder / f"wave-{order.wave:08d}"
        try:
            write_wave(final, play(order))
        except Exception as e:
            traceback.print_exc()
            beside = folder / f".{final.name}.error.tmp"
            beside.write_text(worded(e))
            os.replace(beside, f"{final}.error")
            sys.exit(1)
        with contextlib.suppress(FileNotFoundError):
            orders[0].unlink()


def worded(e: BaseException) -> str:
    """An error in one line, its kind first unless it explains itself."""
    text = " ".join(str(e).split()) or type(e).__name__
    return text if isinstance(e, Explained) else f"{type(e).__name__}: {text}"
