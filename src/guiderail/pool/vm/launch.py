"""Start a slot's server under the process guard, and know whether it lives.

Guarantees: the server, its X server and its sandbox die with this process, also on SIGKILL (see `envs.guard`); the
slot's folder lies on a memory file system where there is one and is removed at the end; what a killed guard left behind
is swept at the next start. May be called from any thread: what must not die with a thread is started by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from guiderail.envs import guard
from guiderail.envs.types import InfraError
from guiderail.pool.vm.sandbox import MB, Limits
from guiderail.pool.vm.server import SOCKET
from guiderail.pool.vm.settle import Rule

PREFIX = "guiderail-desktop-"
SHARED = Path("/dev/shm")
LEAN = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(MB // 4),
}
"""Of the server: frames go back to the system when they are done with (glibc would keep a few, 14 MB a slot)."""


def scratch_root(size: tuple[int, int]) -> Path:
    """Where slots lie: /dev/shm when two frames fit there, else the temporary folder."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(SHARED).free > 2 * 4 * size[0] * size[1] + 8 * MB and os.access(SHARED, os.W_OK):
            return SHARED
    return Path(tempfile.gettempdir())


def sweep(root: Path) -> None:
    """Remove folders whose owner is gone (their names carry its pid)."""
    for folder in root.glob(f"{PREFIX}*"):
        pid = folder.name[len(PREFIX) :].split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class RunningSlot:
    """A slot: its guard, the pipe that keeps it alive, its folder."""

    guard: asyncio.subprocess.Process
    status_fd: int
    folder: Path

    @property
    def socket(self) -> str:
        """Where its server answers."""
        return str(self.folder / SOCKET)

    @property
    def alive(self) -> bool:
        """Whether its server's guard runs (it ends with the server)."""
        return self.guard.returncode is None

    async def stop(self) -> None:
        """End it, wait until nothing of it is left. Idempotent."""
        if self.status_fd >= 0:
            os.close(self.status_fd)
            self.status_fd = -1
        try:
            await asyncio.wait_for(self.guard.wait(), 15)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.guard.kill()
            await self.guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


async def start_slot(
    size: tuple[int, int], limits: Limits, rule: Rule, *, walls: bool = True, journal: str = "", timeout_s: float = 60.0
) -> RunningSlot:
    """A desktop of `size` pixels whose server answers. Raises InfraError with the server's last words."""
    root = scratch_root(size)
    sweep(root)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
    command = [sys.executable, "-m", "guiderail.pool.vm.server", "--slot", str(folder), "--ready-fd", "4"]
    command += ["--size", f"{size[0]}x{size[1]}", "--quiet-ms", str(1000 * rule.quiet_s)]
    command += ["--settle-s", str(rule.limit_s), *([] if walls else ["--no-walls"])]
    command += ["--journal", journal] if journal else []
    for name, value in vars(limits).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    status, unused, ready = os.pipe(), os.pipe(), os.pipe()
    try:
        process = await _begin(command, folder, status[0], unused[0], ready[1])
    except BaseException:
        for fd in (status[1], ready[0]):
            os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for fd in (status[0], *unused, ready[1]):
            os.close(fd)
    slot = RunningSlot(process, status[1], folder)
    try:
        await _wait(ready[0], timeout_s)
    except BaseException as e:
        words = [w for w in (folder / "server.log").read_text(errors="replace").splitlines() if w.strip()][-4:]
        await slot.stop()
        if isinstance(e, InfraError):
            raise InfraError(f"the desktop did not start ({e}): {' | '.join(words)}", "crash") from None
        raise
    return slot


async def _begin(command: list[str], folder: Path, status: int, unused: int, ready: int) -> asyncio.subprocess.Process:
    head = [
        sys.executable,
        "-I",
        "-S",
        str(Path(guard.__file__)),
        str(os.getpid()),
        str(status),
        str(unused),
        str(ready),
    ]
    with (folder / "server.log").open("wb") as out:
        return await asyncio.create_subprocess_exec(
            *head,
            str(folder),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=(status, unused, ready),
            start_new_session=True,
            env={**os.environ, **LEAN},
        )


async def _wait(fd: int, timeout_s: float) -> None:
    """Until the server writes, or its end of the pipe closes. Raises InfraError. Closes `fd`."""
    reader, pipe = asyncio.StreamReader(), os.fdopen(fd, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        async with asyncio.timeout(timeout_s):
            if not await reader.readline():
                raise InfraError("its server ended", "crash")
    except TimeoutError:
        raise InfraError(f"its server did not answer within {timeout_s:g} s", "timeout") from None
    finally:
        transport.close()
