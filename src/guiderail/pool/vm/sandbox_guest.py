"""Programs in a sandbox: orders go to `init.py` in there, and what they do is read from the sandbox's own /proc.

Guarantees: no program inside can reach this process; an order that is not answered within ORDER_TIMEOUT_S, or that the
sandbox refuses, is a GuestError; when the sandbox is gone, so are all its programs, and whoever waits for one is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from guiderail.pool.vm.guest import Child, GuestError
from guiderail.pool.vm.processes import Process, read_processes
from guiderail.pool.vm.sandbox import UID

ORDER_TIMEOUT_S = 20.0
ORDER_LIMIT = 150_000  # bytes of one order: what a SOCK_SEQPACKET message holds on every kernel


class _Inside:
    """A program inside a sandbox."""

    def __init__(self, guest: SandboxGuest, pid: int, ended: Future[int]) -> None:
        self.guest, self.pid, self.ended = guest, pid, ended

    def wait(self, timeout: float) -> int | None:
        try:
            return self.ended.result(timeout)
        except FutureTimeout:
            return None

    def kill(self) -> None:
        self.guest.order({"do": "kill", "pid": self.pid, "group": True})


class SandboxGuest:
    """Programs in the sandbox whose `init.py` is at the other end of `sock` and is process `init_pid` out here."""

    def __init__(
        self, sock: socket.socket, init_pid: int, environment: dict[str, str], home: str, limits: Mapping[str, int]
    ) -> None:
        """Raises OSError when the sandbox ended at once."""
        self.environment, self.home, self.limits = environment, home, dict(limits)
        self._sock = sock
        self._proc = os.open(f"/proc/{init_pid}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        places = (home, f"/run/user/{UID}", "/tmp", "/var/tmp", "/dev/shm")
        self._places = [os.open(f"/proc/{init_pid}/root{p}", os.O_RDONLY | os.O_CLOEXEC) for p in places]
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._children: dict[int, Future[int]] = {}
        self.gone = threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="guest").start()

    def _listen(self) -> None:
        while True:
            try:
                data = self._sock.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                break
            told = json.loads(data)
            with self._lock:
                if "exit" in told:
                    child = self._children.pop(told["exit"], None)
                    if child is not None:  # else an orphan of somebody else's
                        child.set_result(told["status"])
                    continue
                future = self._waiting.pop(told.get("id", -1), None)
                if "pid" in told:  # init.py reports its end after this
                    told["child"] = self._children[told["pid"]] = Future()
                if future is not None:
                    future.set_result(told)
        self.gone.set()
        with self._lock:
            for future in self._waiting.values():
                future.set_exception(GuestError("the sandbox is gone"))
            for child in self._children.values():
                child.set_result(-signal.SIGKILL)
            self._waiting.clear()
            self._children.clear()

    def order(self, order: dict[str, Any], fds: Sequence[int] = (), timeout: float = ORDER_TIMEOUT_S) -> dict[str, Any]:
        """Give an order and return the reply. Raises GuestError."""
        if self.gone.is_set():
            raise GuestError("the sandbox is gone")
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = future
        message = json.dumps({"id": number, **order}).encode()
        if len(message) > ORDER_LIMIT:
            raise GuestError(f"a command of {len(message)} bytes is too long; put it into a file", 7)
        try:
            with self._sending:
                socket.send_fds(self._sock, [message], list(fds)) if fds else self._sock.send(message)
            told = future.result(timeout)
        except (OSError, FutureTimeout) as e:
            raise GuestError(f"the sandbox does not take orders: {type(e).__name__} {e}") from e
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if "error" in told:
            raise GuestError(told["error"], told["errno"])
        return told

    def spawn(
        self, argv: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str], cwd: str
    ) -> Child:
        """See Guest."""
        order = {"do": "spawn", "argv": list(argv), "env": dict(env), "cwd": cwd, "limits": self.limits}
        told = self.order(order, (stdin, stdout, stderr))
        return _Inside(self, told["pid"], told["child"])

    def processes(self, shared: bool = False) -> list[Process]:
        """See Guest; without `init.py`."""
        return read_processes(self._proc, frozenset((1,)), shared)

    def kill(self, pid: int) -> None:
        """See Guest."""
        self.order({"do": "kill", "pid": pid, "group": False})

    def end_all(self) -> None:
        """Kill all programs. Raises GuestError."""
        self.order({"do": "end"})

    def files(self) -> int:
        """See Guest. None of them need hold a byte, and each takes a kilobyte of the kernel's memory."""
        told = [os.fstatvfs(fd) for fd in self._places]
        return sum(t.f_files - t.f_ffree for t in told)

    def fresh(self, layout: Mapping[str, Any]) -> None:
        """Kill all programs, empty what they could write to, lay out the home. Raises GuestError."""
        self.order({"do": "fresh", "layout": dict(layout)})

    def close(self) -> None:
        """End the sandbox."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
