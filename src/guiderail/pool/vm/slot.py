"""A slot's own desktop: X server, sandbox, session; made in a second, reset in less.

Guarantees: after `reset` the screen is the same, pixel for pixel, as after the start, and nothing that ran before is
left: programs are killed, every folder they could write to is emptied, the X server is another one. Where no sandbox
can be made the programs run beside this process with a display and home of their own: `sandboxed` is False then, which
is said aloud, since files, network and other programs are open to them, and the X server stays.
`start` must run in a thread that lives as long as the slot (bwrap dies with the thread that started it).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from guiderail.pool.vm import home, sandbox, seccomp
from guiderail.pool.vm.desktop import Desktop, applications
from guiderail.pool.vm.guest import DirectGuest, GuestError, SandboxGuest, start
from guiderail.pool.vm.sandbox import Limits
from guiderail.pool.vm.screen import FrameFile
from guiderail.pool.vm.settle import Rule
from guiderail.pool.vm.x11 import X11, XError

log = logging.getLogger("guiderail.pool.vm")
START_S = 30.0
POLL_S = 0.004
FRAME_FILE = "Xvfb_screen0"
REST = Rule(quiet_s=0.08, limit_s=4.0)
WHY_NO_WALLS = (
    "programs of this desktop are NOT isolated: %s. They have a display and a home of their own, but the files, the "
    "network and the processes of this user are open to them. Run no task that you do not trust, or let user "
    "namespaces be used (sysctl kernel.unprivileged_userns_clone=1, or an AppArmor profile for bwrap)"
)


class Slot(Desktop):
    """The desktop in `folder` (on a memory file system, best)."""

    limits: Limits
    uid: int | None
    layout: dict[str, Any]
    folder: Path
    processes_of_ours: list[subprocess.Popen[bytes]]  # the X server first
    starter: ThreadPoolExecutor  # its thread lives as long as the slot: what it starts may outlive who asked
    replacing: threading.Lock  # held while the X server's process is exchanged

    def reset(self) -> None:
        """A fresh desktop; nothing to do for one that nobody has touched. Raises GuestError, XError."""
        with self.lock:
            self.notes.clear()
            if self.untouched:
                return
            if isinstance(self.guest, SandboxGuest):
                self.guest.end_all()  # or one could reach the new X server
                self._fresh_x()
                self.guest.fresh(self.layout)
                self.use(*self._connected())
            else:
                _fresh_without_walls(self.guest, self.folder, self.layout)  # type: ignore[arg-type]
                self.windows.silent.clear()
                self.x.delete_properties(self.x.root)
            self.input.release_all()
            self.begin_session()
            self.untouched = True

    def _fresh_x(self) -> None:
        """A new X server in place of the old one.

        An old one keeps what programs told it: windows of clients that asked to outlive themselves, swapped buttons,
        a keyboard without modifiers, a screen saver, who may connect.
        """
        self.x.close()
        with self.replacing:
            old = self.processes_of_ours[0]
            old.kill()  # bwrap: the X server dies with it
            old.wait()
            (self.folder / "x" / "X0").unlink(missing_ok=True)
            (self.folder / "fb" / FRAME_FILE).unlink()  # who still looks at the old one must not see it shrink
            self.processes_of_ours[0] = self.starter.submit(_start_x, self.folder, self.uid, self.size).result()

    def _connected(self) -> tuple[X11, FrameFile]:
        """The new X server and its picture. Raises GuestError."""
        x = _connect(str(self.folder / "x" / "X0"), b"", self.processes_of_ours[0], self.folder / "x.log")
        return x, FrameFile(self.folder / "fb" / FRAME_FILE)

    def begin_session(self) -> None:
        """Message bus, window manager, desktop, panel; returns when they stand still. Raises GuestError, XError."""
        bus = home.BUS if self.sandboxed else f"{self.folder}/run/bus"
        guest = self.guest
        ready, told = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            daemon = ["dbus-daemon", "--session", f"--address=unix:path={bus}", "--nofork", "--nopidfile"]
            guest.spawn([*daemon, "--print-address=1"], null, told, null, guest.environment, guest.home)
            os.close(told)
            os.read(ready, 1)  # the bus listens (or ended: then what needs it says so)
        finally:
            os.close(ready)
            os.close(null)
        start(guest, home.MANAGER)
        _until(self.windows.managed, "the window manager runs")
        for command in home.SESSION:
            start(guest, command)
        _until(lambda: {"desktop", "dock"} <= {w.kind for w in self.windows.all()}, "desktop and panel are there")
        self.settle(REST)

    def close(self) -> None:
        """End everything. Idempotent."""
        super().close()
        self.starter.shutdown(wait=False)
        self.guest.close()  # type: ignore[attr-defined]
        for process in self.processes_of_ours:
            process.kill()
            process.wait()


def _until(condition: Callable[[], bool], what: str, limit_s: float = START_S) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise GuestError(f"within {limit_s:g} s it did not happen that {what}")
        time.sleep(POLL_S)


def make(folder: Path, size: tuple[int, int], limits: Limits, rule: Rule, *, walls: bool = True) -> Slot:
    """Start a desktop of `size` pixels in the empty `folder`, which is left to the caller. Raises GuestError, XError.

    `walls` False: without a sandbox, also where one could be made.
    """
    why = sandbox.refusal() if walls else "it was started without walls"
    if why:
        log.warning(WHY_NO_WALLS, why)
    ours: list[subprocess.Popen[bytes]] = []
    try:
        return _with_walls(folder, size, limits, rule, ours) if not why else _without(folder, size, limits, rule, ours)
    except BaseException:
        for process in ours:
            process.kill()
            process.wait()
        raise


def _x_arguments(size: tuple[int, int], frames: str) -> list[str]:
    server = ["-screen", "0", f"{size[0]}x{size[1]}x24", "-fbdir", frames, "-nolisten", "tcp", "-noreset", "-dpi", "96"]
    return [*server, "-extension", "GLX", "-extension", "MIT-SHM"]  # shared memory does not pass between namespaces


def _with_walls(
    folder: Path, size: tuple[int, int], limits: Limits, rule: Rule, ours: list[subprocess.Popen[bytes]]
) -> Slot:
    sockets, frames, uid = folder / "x", folder / "fb", sandbox.slot_uid()
    for place in (sockets, frames):
        place.mkdir()
        if uid is not None:
            os.chown(place, uid, uid)
    if uid is not None:
        folder.chmod(0o711)  # its own uid may pass, not look around
    as_user = sandbox.as_user(uid)
    ours.append(_start_x(folder, uid, size))
    guest_process, here, info = _begin_programs(sockets, folder / "programs.log", limits, as_user)
    ours.append(guest_process)
    importlib.import_module("numpy")  # what takes time is done while the others start
    x = _connect(str(sockets / "X0"), b"", ours[0], folder / "x.log")
    told = _line(info, ours[1], folder / "programs.log")
    here.settimeout(START_S)
    if not here.recv(1 << 16):  # {"ready": 1}
        raise GuestError(f"the sandbox ended at once: {_tail(folder / 'programs.log')}")
    here.settimeout(None)
    guest = SandboxGuest(
        here, int(json.loads(told)["child-pid"]), home.environment(":0"), sandbox.HOME, limits.of_process()
    )
    slot = _slot(x, frames, guest, rule, folder, limits, ours)
    slot.sandboxed, slot.uid = True, uid
    slot.layout = home.layout({k: str(v) for k, v in applications().items()})
    guest.fresh(slot.layout)
    slot.input.release_all()
    slot.begin_session()
    slot.untouched = True
    return slot


def _start_x(folder: Path, uid: int | None, size: tuple[int, int]) -> subprocess.Popen[bytes]:
    """The X server in its sandbox, on its way."""
    server = ["Xvfb", ":0", *_x_arguments(size, "/fb"), "-ac"]
    command = sandbox.x_server(folder / "x", folder / "fb", server)
    return _popen(command, folder / "x.log", (), sandbox.as_user(uid))


def _begin_programs(
    sockets: Path, log_file: Path, limits: Limits, as_user: dict[str, object]
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start the programs' sandbox; its process, our end of its socket, and where bwrap writes its pid."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    info, told = os.pipe2(os.O_CLOEXEC)
    texts = {
        sandbox.INIT: Path(__file__).with_name("init.py").read_text(),
        "/etc/passwd": sandbox.PASSWD,
        "/etc/group": sandbox.GROUP,
        "/etc/hosts": "127.0.0.1 localhost desktop\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "/etc/machine-id": "0" * 31 + "1\n",
        "/etc/hostname": "desktop\n",
    }
    fds = {path: _memory_file(text.encode()) for path, text in texts.items()}
    refused = seccomp.program()
    filters = [_memory_file(refused)] if refused else []
    try:
        command = sandbox.programs(sockets, limits, fds, told, there.fileno(), *filters)
        process = _popen(command, log_file, (told, there.fileno(), *fds.values(), *filters), as_user)
    finally:
        there.close()
        for fd in (told, *fds.values(), *filters):
            os.close(fd)
    return process, here, info


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("guiderail", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _popen(
    command: list[str], log_file: Path, fds: tuple[int, ...], options: dict[str, object]
) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    with log_file.open("ab") as out:
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            command, stdin=null, stdout=out, stderr=out, pass_fds=fds, cwd="/", start_new_session=True, **options
        )


def _line(fd: int, process: subprocess.Popen[bytes], log_file: Path) -> str:
    """What a child writes into a pipe before it closes it."""
    with open(fd, "rb") as f:
        text = f.read().decode()
    if not text:
        process.wait(5)
        raise GuestError(f"the sandbox did not start: {_tail(log_file)}")
    return text


def _connect(path: str, cookie: bytes, server: subprocess.Popen[bytes], log_file: Path) -> X11:
    end = time.monotonic() + START_S
    while True:
        if server.poll() is not None:
            raise GuestError(f"Xvfb ended: {_tail(log_file)}")
        if os.path.exists(path):
            with contextlib.suppress(XError):
                return X11(path, cookie)
        if time.monotonic() > end:
            raise GuestError(f"Xvfb did not listen within {START_S:g} s: {_tail(log_file)}")
        time.sleep(POLL_S)


def _tail(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").split("\n") if log_file.exists() else []
    return " | ".join(line.strip() for line in lines if line.strip())[-500:] or "it said nothing"


def _slot(
    x: X11,
    frames: Path,
    guest: SandboxGuest | DirectGuest,
    rule: Rule,
    folder: Path,
    limits: Limits,
    ours: list[subprocess.Popen[bytes]],
) -> Slot:
    slot = Slot(x, FrameFile(frames / FRAME_FILE), guest, rule)
    slot.starter, slot.replacing = ThreadPoolExecutor(1), threading.Lock()
    slot.folder, slot.limits, slot.processes_of_ours, slot.uid = folder, limits, ours, None
    return slot


# -- without walls ----------------------------------------------------------------------------------------------------
def _without(
    folder: Path, size: tuple[int, int], limits: Limits, rule: Rule, ours: list[subprocess.Popen[bytes]]
) -> Slot:
    import ctypes  # these weigh, and a slot with walls does without
    import secrets

    frames, place = folder / "fb", folder / "home"
    for p in (frames, place, folder / "run", folder / "tmp"):
        p.mkdir(mode=0o700)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of programs come to us
    cookie, authority = secrets.token_bytes(16), folder / "Xauthority"
    number_end, told = os.pipe2(os.O_CLOEXEC)
    authority.touch(0o600)
    write_cookies(authority, cookie, 0)  # the server takes any display's
    command = ["Xvfb", "-displayfd", str(told), *_x_arguments(size, str(frames)), "-auth", str(authority)]
    ours.append(_popen(command, folder / "x.log", (told,), {}))
    os.close(told)
    with open(number_end, "rb") as f:  # kept open until the newline, or Xvfb dies
        number = f.readline().decode().strip()
    if not number:
        raise GuestError(f"Xvfb did not start: {_tail(folder / 'x.log')}")
    write_cookies(authority, cookie, int(number))
    x = _connect(f"/tmp/.X11-unix/X{number}", cookie, ours[0], folder / "x.log")
    changed = {"HOME": str(place), "XAUTHORITY": str(authority), "XDG_RUNTIME_DIR": str(folder / "run")}
    changed |= {"TMPDIR": str(folder / "tmp"), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={folder}/run/bus"}
    guest = DirectGuest({**home.environment(f":{number}"), **changed}, str(place))
    slot = _slot(x, frames, guest, rule, folder, limits, ours)
    slot.layout = home.layout({k: str(v) for k, v in applications().items()})
    _fresh_without_walls(guest, folder, slot.layout)
    slot.input.release_all()
    slot.begin_session()
    slot.untouched = True
    return slot


def _fresh_without_walls(guest: DirectGuest, folder: Path, layout: dict[str, Any]) -> None:
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
