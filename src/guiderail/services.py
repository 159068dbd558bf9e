"""Services a stage needs (env pool, inference server, ...): started, waited for, and always stopped.

Guarantees: `service(...)` hands out an address only after the service has answered; when the block is left in any
way (end, exception, Ctrl-C), or this process dies in any way (SIGTERM, kill -9), the whole process group gets SIGTERM
and, after a grace, everything the service started gets SIGKILL (see service_guard.py, the small process in between).
A service that dies or hangs while starting is an error that shows the end of its log.
Does not restart a service that dies later.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guiderail import service_guard
from guiderail.errors import Explained


class ServiceError(Explained, RuntimeError):
    """A service did not start or did not become ready; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Service:
    """A running service: its address, the pid of the service itself, and its log."""

    name: str
    url: str
    pid: int
    guard_pid: int
    log: Path


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port nobody listens on now (another process may still take it before you do)."""
    with socket.socket() as s:
        s.bind((host, 0))
        port: int = s.getsockname()[1]
        return port


def tail(path: Path, lines: int = 20, size: int = 8192) -> str:
    """Last `lines` lines of a log file ("" when there is none)."""
    if not path.exists():
        return ""
    with path.open("rb") as f:
        f.seek(max(0, path.stat().st_size - size))
        return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])


def _answers(url: str, timeout: float) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as reply:
            return 200 <= int(reply.status) < 400
    except (OSError, ValueError, urllib.error.URLError):
        return False


def _stop(guard: subprocess.Popen[str], grace: float) -> None:
    guard.send_signal(signal.SIGTERM)
    try:
        guard.wait(grace + 8.0)
    except subprocess.TimeoutExpired:
        service_guard.kill_descendants(guard.pid, patience=0.0)
        guard.kill()
        guard.wait(5.0)


@contextmanager
def service(
    cmd: list[str],
    name: str,
    *,
    ready_url: str = "",
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    grace: float = 10.0,
    poll: float = 0.05,
) -> Iterator[Service]:
    """Run `cmd` for the length of the block.

    `{port}` in `cmd` and `ready_url` becomes a free port. Ready = `ready_url` answers 2xx/3xx within `timeout` seconds
    ("" = ready at once). `env` is added to this process's environment. `log` gets stdout and stderr (default: a
    temporary file, removed after a clean end). Raises ServiceError when it cannot be started, dies early or is
    not ready in time.
    """
    port = str(free_port())
    cmd = [part.replace("{port}", port) for part in cmd]
    ready_url = ready_url.replace("{port}", port)
    scratch = Path(tempfile.mkdtemp(prefix=f"{name}-")) if log is None else None
    path = log if log is not None else Path(scratch or ".") / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    guard_cmd = [sys.executable, "-S", "-E", service_guard.__file__, str(os.getpid()), str(grace), *cmd]
    with path.open("ab") as out:
        guard = subprocess.Popen(
            guard_cmd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            text=True,
        )
    clean = False
    try:
        assert guard.stdout is not None
        first = guard.stdout.readline().strip()
        guard.stdout.close()
        if not first:
            raise ServiceError(f"service {name} could not be started: {' '.join(cmd)}\n{tail(path)}")
        pid, end = int(first), time.monotonic() + timeout
        while ready_url and not _answers(ready_url, min(2.0, timeout)):
            if guard.poll() is not None:
                raise ServiceError(
                    f"service {name} died with status {guard.returncode} before it was ready; "
                    f"end of its log ({path}):\n{tail(path)}"
                )
            if time.monotonic() > end:
                raise ServiceError(
                    f"service {name} did not answer {ready_url} within {timeout:g} s "
                    f"(raise its timeout if it is only slow); end of its log ({path}):\n{tail(path)}"
                )
            time.sleep(poll)
        url = ready_url.split("/", 3)
        yield Service(name, "/".join(url[:3]) if ready_url else "", pid, guard.pid, path)
        clean = True
    finally:
        _stop(guard, grace)
        if clean and scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
