"""A slot without walls, where no sandbox can be made: a display, a cookie and a home of its own, and nothing more.

Guarantees: `fresh` ends all programs of the slot and lays its folders out anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from guiderail.pool.vm import home, sandbox
from guiderail.pool.vm.direct_guest import DirectGuest
from guiderail.pool.vm.guest import GuestError
from guiderail.pool.vm.x11 import X11
from guiderail.pool.vm.xserver import POLL_S, connect, popen, tail, x_arguments


def begin(folder: Path, size: tuple[int, int], ours: list[subprocess.Popen[bytes]]) -> tuple[X11, DirectGuest]:
    """X server and programs in `folder`, its frames in folder/fb; processes are added to `ours`. Raises GuestError."""
    frames, place = folder / "fb", folder / "home"
    for p in (frames, place, folder / "run", folder / "tmp"):
        p.mkdir(mode=0o700)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of programs come to us
    cookie, authority = secrets.token_bytes(16), folder / "Xauthority"
    number_end, told = os.pipe2(os.O_CLOEXEC)
    authority.touch(0o600)
    write_cookies(authority, cookie, 0)  # the server takes any display's
    command = ["Xvfb", "-displayfd", str(told), *x_arguments(size, str(frames)), "-auth", str(authority)]
    ours.append(popen(command, folder / "x.log", (told,), {}))
    os.close(told)
    with open(number_end, "rb") as f:  # kept open until the newline, or Xvfb dies
        number = f.readline().decode().strip()
    if not number:
        raise GuestError(f"Xvfb did not start: {tail(folder / 'x.log')}")
    write_cookies(authority, cookie, int(number))
    x = connect(f"/tmp/.X11-unix/X{number}", cookie, ours[0], folder / "x.log")
    changed = {"HOME": str(place), "XAUTHORITY": str(authority), "XDG_RUNTIME_DIR": str(folder / "run")}
    changed |= {"TMPDIR": str(folder / "tmp"), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={folder}/run/bus"}
    guest = DirectGuest({**home.environment(f":{number}"), **changed}, str(place))
    return x, guest


def fresh(guest: DirectGuest, folder: Path, layout: dict[str, Any]) -> None:
    """End all programs, lay the home of `layout` out in `folder`. Raises GuestError."""
    end = time.monotonic() + 5
    while left := [p for p in guest.processes() if p.name != "Xvfb" and p.state != "Z"]:
        for p in left:
            guest.kill(p.pid)
        _reap()
        if time.monotonic() > end:
            raise GuestError(f"a process does not die: {left[0].name}")
        time.sleep(POLL_S)
    for name in ("home", "run", "tmp"):
        shutil.rmtree(folder / name)
        (folder / name).mkdir(mode=0o700)
    for path, text in layout["files"].items():
        file = folder / "home" / Path(path).relative_to(sandbox.HOME)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for path in layout["folders"]:
        if path.startswith(sandbox.HOME):
            (folder / "home" / Path(path).relative_to(sandbox.HOME)).mkdir(parents=True, exist_ok=True)


def _reap() -> None:
    """Collect orphans that came to us; children of Popen objects are theirs."""
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return


def write_cookies(file: Path, cookie: bytes, number: int) -> None:
    """Write an Xauthority for display `number`: family local with the host's name, which every client reads."""

    def field(data: bytes) -> bytes:
        return len(data).to_bytes(2, "big") + data

    host = socket.gethostname().encode()
    rest = field(host) + field(str(number).encode()) + field(b"MIT-MAGIC-COOKIE-1") + field(cookie)
    file.write_bytes((256).to_bytes(2, "big") + rest)
