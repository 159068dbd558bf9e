"""Programs as children of this process: inside a VM, or where no sandbox can be made. Isolates nothing.

Guarantees: `close` leaves none of them behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from guiderail.pool.vm.guest import Child, GuestError
from guiderail.pool.vm.processes import Process, read_processes


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
