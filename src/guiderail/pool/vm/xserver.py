"""The X server of a slot: its command, its start, and the first connection to it.

Guarantees: what does not start is a GuestError with the server's last words.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from guiderail.pool.vm import sandbox
from guiderail.pool.vm.guest import GuestError
from guiderail.pool.vm.x11 import X11, XError

START_S = 30.0
POLL_S = 0.004
FRAME_FILE = "Xvfb_screen0"


def x_arguments(size: tuple[int, int], frames: str) -> list[str]:
    """Words of the command: a screen of `size` pixels, its frame file in the folder `frames`."""
    server = ["-screen", "0", f"{size[0]}x{size[1]}x24", "-fbdir", frames, "-nolisten", "tcp", "-noreset", "-dpi", "96"]
    return [*server, "-extension", "GLX", "-extension", "MIT-SHM"]  # shared memory does not pass between namespaces


def start_x(folder: Path, uid: int | None, size: tuple[int, int]) -> subprocess.Popen[bytes]:
    """The X server in its sandbox, on its way."""
    server = ["Xvfb", ":0", *x_arguments(size, "/fb"), "-ac"]
    command = sandbox.x_server(folder / "x", folder / "fb", server)
    return popen(command, folder / "x.log", (), sandbox.as_user(uid))


def popen(
    command: list[str], log_file: Path, fds: tuple[int, ...], options: dict[str, object]
) -> subprocess.Popen[bytes]:
    """A process that keeps `fds` open and writes into `log_file`; `options`: more of subprocess."""
    null = subprocess.DEVNULL
    with log_file.open("ab") as out:
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            command, stdin=null, stdout=out, stderr=out, pass_fds=fds, cwd="/", start_new_session=True, **options
        )


def connect(path: str, cookie: bytes, server: subprocess.Popen[bytes], log_file: Path) -> X11:
    """The first connection to `server` at its socket `path`. Raises GuestError."""
    end = time.monotonic() + START_S
    while True:
        if server.poll() is not None:
            raise GuestError(f"Xvfb ended: {tail(log_file)}")
        if os.path.exists(path):
            with contextlib.suppress(XError):
                return X11(path, cookie)
        if time.monotonic() > end:
            raise GuestError(f"Xvfb did not listen within {START_S:g} s: {tail(log_file)}")
        time.sleep(POLL_S)


def tail(log_file: Path) -> str:
    """The last words in a log, for an error."""
    lines = log_file.read_text(errors="replace").split("\n") if log_file.exists() else []
    return " | ".join(line.strip() for line in lines if line.strip())[-500:] or "it said nothing"
