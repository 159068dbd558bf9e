"""Programs of the desktop: start them, feed them, stop them, see what they do. In a sandbox, or (`DirectGuest`) not.

Guarantees: `run` returns within its limit, kills the whole process group of what it started, and keeps at most
OUTPUT_LIMIT bytes of output; nothing goes through a shell unless the caller's command is one. `SandboxGuest` talks to
`init.py` inside the sandbox and reads the sandbox's own /proc from outside: no program inside can reach this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Protocol

from guiderail.pool.vm.sandbox import UID

OUTPUT_LIMIT = 64 << 20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
ORDER_TIMEOUT_S = 20.0
ORDER_LIMIT = 150_000  # bytes of one order: what a SOCK_SEQPACKET message holds on every kernel


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


@dataclass(frozen=True)
class Process:
    """One process as /proc tells it. `memory`: bytes of its own (not shared, unless asked for), `used`: seconds of
    processor time."""

    pid: int
    name: str
    state: str
    used: float
    memory: int


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


class _Direct:
    """A program beside us."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.pid = process, process.pid

    def wait(self, timeout: float) -> int | None:
        try:
            return self.process.wait(timeout) if timeout else self.process.poll()
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class DirectGuest:
    """Programs as children of this process: inside a VM, or where no sandbox can be made. Isolates nothing."""

    def __init__(self, environment: dict[str, str], home: str) -> None:
        self.environment, self.home = environment, home
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def spawn(
        self, argv: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str], cwd: str
    ) -> Child:
        """See Guest."""
        try:
            return _Direct(
                subprocess.Popen(
                    list(argv), stdin=stdin, stdout=stdout, stderr=stderr, env=dict(env), cwd=cwd,
                    start_new_session=True,
                )
            )  # fmt: skip
        except OSError as e:
            raise GuestError(f"{argv[0]}: {e}", e.errno or 0) from e

    def processes(self, shared: bool = False) -> list[Process]:
        """See Guest: everything below this process."""
        from guiderail.service_guard import descendants

        mine = frozenset(descendants(os.getpid()))
        return [p for p in read_processes(self._proc, frozenset(), shared) if p.pid in mine]

    def kill(self, pid: int) -> None:
        """See Guest."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

    def end_all(self) -> None:
        """See Guest."""
        for p in self.processes():
            self.kill(p.pid)

    def files(self) -> int:
        """See Guest: the file system is this machine's own."""
        return 0

    def close(self) -> None:
        """Kill what is left."""
        from guiderail.service_guard import kill_descendants

        kill_descendants(os.getpid(), patience=0.0)
