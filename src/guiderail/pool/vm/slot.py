"""A slot's own desktop: X server, sandbox, session; made in a second, reset in less.

Guarantees: after `reset` the screen is the same, pixel for pixel, as after the start, and nothing that ran before is
left: programs are killed, every folder they could write to is emptied, the X server is another one. Where no sandbox
can be made the programs run beside this process with a display and home of their own: `sandboxed` is False then, which
is said aloud, since files, network and other programs are open to them, and the X server stays.
`start` must run in a thread that lives as long as the slot (bwrap dies with the thread that started it).
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from guiderail.pool.vm import home, sandbox
from guiderail.pool.vm.desktop import Desktop, applications
from guiderail.pool.vm.direct_guest import DirectGuest
from guiderail.pool.vm.guest import GuestError, start
from guiderail.pool.vm.sandbox import Limits
from guiderail.pool.vm.sandbox_guest import SandboxGuest
from guiderail.pool.vm.screen import FrameFile
from guiderail.pool.vm.settle import Rule
from guiderail.pool.vm.walled import begin_programs, guest_of
from guiderail.pool.vm.x11 import X11
from guiderail.pool.vm.xserver import FRAME_FILE, POLL_S, START_S, connect, start_x

log = logging.getLogger("guiderail.pool.vm")
REST = Rule(quiet_s=0.08, limit_s=4.0)
WHY_NO_WALLS = (
    "programs of this desktop are NOT isolated: %s. They have a display and a home of their own, but the files, the "
    "network and the processes of this user are open to them. Run no task that you do not trust, or let user "
    "namespaces be used (sysctl kernel.unprivileged_userns_clone=1, or an AppArmor profile for bwrap)"
)


class Slot(Desktop):
    """The desktop in `folder` (on a memory file system, best)."""

    resets = True
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
                _fresh_without_walls(self)
                self.windows.silent.clear()
                self.x.delete_properties(self.x.root)
            self.begin()

    def begin(self) -> None:
        """The session of a desktop that was just laid out. Raises GuestError, XError."""
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
            self.processes_of_ours[0] = self.starter.submit(start_x, self.folder, self.uid, self.size).result()

    def _connected(self) -> tuple[X11, FrameFile]:
        """The new X server and its picture. Raises GuestError."""
        x = connect(str(self.folder / "x" / "X0"), b"", self.processes_of_ours[0], self.folder / "x.log")
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
    ours.append(start_x(folder, uid, size))
    programs, here, info = begin_programs(sockets, folder / "programs.log", limits, sandbox.as_user(uid))
    ours.append(programs)
    importlib.import_module("numpy")  # what takes time is done while the others start
    x = connect(str(sockets / "X0"), b"", ours[0], folder / "x.log")
    guest = guest_of(programs, here, info, folder / "programs.log", limits)
    slot = _slot(x, guest, rule, folder, limits, ours)
    slot.sandboxed, slot.uid = True, uid
    guest.fresh(slot.layout)
    slot.begin()
    return slot


def _without(
    folder: Path, size: tuple[int, int], limits: Limits, rule: Rule, ours: list[subprocess.Popen[bytes]]
) -> Slot:
    from guiderail.pool.vm import unwalled  # it weighs, and a slot with walls does without

    x, guest = unwalled.begin(folder, size, ours)
    slot = _slot(x, guest, rule, folder, limits, ours)
    _fresh_without_walls(slot)
    slot.begin()
    return slot


def _fresh_without_walls(slot: Slot) -> None:
    from guiderail.pool.vm import unwalled

    assert isinstance(slot.guest, DirectGuest)
    unwalled.fresh(slot.guest, slot.folder, slot.layout)


def _slot(
    x: X11,
    guest: SandboxGuest | DirectGuest,
    rule: Rule,
    folder: Path,
    limits: Limits,
    ours: list[subprocess.Popen[bytes]],
) -> Slot:
    slot = Slot(x, FrameFile(folder / "fb" / FRAME_FILE), guest, rule)
    slot.starter, slot.replacing = ThreadPoolExecutor(1), threading.Lock()
    slot.folder, slot.limits, slot.processes_of_ours, slot.uid = folder, limits, ours, None
    slot.layout = home.layout({k: str(v) for k, v in applications().items()})
    return slot
