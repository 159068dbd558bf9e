"""One desktop: its screen, its input, its windows and its programs, behind one lock.

Guarantees: actions, resets and waits for quiet come one after the other; what an action means is checked before its
first event. `attach` takes the desktop of a machine that runs one already (a VM); a slot's own is made by `slot`.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from configparser import Error as ConfigError
from configparser import RawConfigParser
from pathlib import Path

from guiderail.actions.types import Action, Answer, Finish, Open
from guiderail.pool.vm.direct_guest import DirectGuest
from guiderail.pool.vm.guest import Guest, GuestError, start, work
from guiderail.pool.vm.input import Input
from guiderail.pool.vm.pace import BUTTON_S, flash_of
from guiderail.pool.vm.screen import Frames, RequestFrame
from guiderail.pool.vm.settle import Rule, Settled, settle
from guiderail.pool.vm.windows import Windows
from guiderail.pool.vm.x11 import X11, XError, read_cookie

BARRIER_S = 5.0
APPLICATIONS = Path("/usr/share/applications")


class Desktop:
    """See the module. `rule`: when its screen counts as settled. `resets`: whether it can be made anew in place."""

    resets = False

    def __init__(self, x: X11, frames: Frames, guest: Guest, rule: Rule) -> None:
        self.guest, self.rule = guest, rule
        self.use(x, frames)
        self.lock = threading.RLock()
        self.sandboxed = False
        self.untouched = False  # fresh, and nothing was asked of it since
        self.notes: list[str] = []  # what the watchdog did, since the last reset

    def use(self, x: X11, frames: Frames) -> None:
        """Work the screen of this X server from now on."""
        self.x, self.frames = x, frames
        self.windows = Windows(x)
        self.input = Input(x, self.barrier, self.app)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.frames.width, self.frames.height

    def work(self) -> tuple[bool, float]:
        """See `settle.Work`."""
        return work(self.guest)

    def barrier(self) -> None:
        """Return when the active window has read what was sent to it, or has not answered for long."""
        if active := self.windows.active():
            self.windows.ping(active, BARRIER_S)

    def app(self) -> str:
        """The class of the active window, "" without one."""
        active = self.windows.active()
        try:
            return self.windows.app(active) if active else ""
        except XError:
            self.x.sync()  # raises when the server itself is gone; else the window vanished
            return ""

    def act(self, action: Action) -> None:
        """Do `action`; returns when the X server has it. Raises ValueError with nothing done, XError, GuestError."""
        with self.lock:
            self.untouched = False
            match action:
                case Open(app):
                    start(self.guest, command_of(app))
                case Answer() | Finish():
                    pass  # said to the judge, not to the screen
                case _:
                    self.input.do(action)

    def patience(self, window: int) -> float:
        """See `settle.settle`: a key that is shown as pressed, a button that has yet to act, are not the end."""
        try:
            if not window:
                return 0.0
            return max(flash_of(self.windows.app(window)), BUTTON_S if self.windows.kind(window) == "dialog" else 0.0)
        except XError:
            self.x.sync()  # raises when the server itself is gone; else the window vanished
            return 0.0

    def settle(self, rule: Rule | None = None) -> Settled:
        """Wait until the screen has settled; see `settle.settle`. Raises XError."""
        with self.lock:
            windows = self.windows
            found = settle(rule or self.rule, self.frames, self, windows.active, windows.ping, self.patience)
            self.input.keyboard.settled()
            return found

    def reset(self) -> None:
        """A desktop as it was at first. Raises GuestError where that cannot be had."""
        raise GuestError("this desktop is the machine's own: it is reset by the machine's provider")

    def close(self) -> None:
        """Let go."""
        self.x.close()


def attach(display: str, rule: Rule) -> Desktop:
    """The desktop that runs on `display` (":N") of this machine. Raises XError."""
    m = re.fullmatch(r"(?:unix)?:(\d+)(?:\.\d+)?", display)
    if m is None:
        raise XError(f"DISPLAY is {display!r}: only a display of this machine (:0) can be worked")
    number = int(m[1])
    file = Path(os.environ.get("XAUTHORITY") or Path.home() / ".Xauthority")
    cookie = read_cookie(file, number) if file.is_file() else b""
    x = X11(f"/tmp/.X11-unix/X{number}", cookie)
    guest = DirectGuest(dict(os.environ), str(Path.home()))
    return Desktop(x, RequestFrame(x), guest, rule)


def applications(folder: Path = APPLICATIONS) -> dict[str, Path]:
    """Desktop files by their id."""
    return {f.stem: f for f in sorted(folder.glob("*.desktop"))}


def command_of(app: str, folder: Path = APPLICATIONS) -> list[str]:
    """The command of an application named by its id, its name or its program. Raises ValueError when there is none.

    The words are those of the desktop file (installed, read-only); `app` only chooses among them.
    """
    wanted, known, best = app.strip().lower(), [], (9, 0, [""])
    for stem, file in applications(folder).items():
        parser = RawConfigParser(strict=False, interpolation=None)
        try:
            parser.read(file, encoding="utf-8")
            entry = parser["Desktop Entry"]
            words = [w for w in shlex.split(entry.get("Exec", "")) if not re.fullmatch(r"%[a-zA-Z]", w)]
        except (KeyError, ValueError, OSError, ConfigError):
            continue  # not a desktop file
        if not words or entry.get("Type", "Application") != "Application":
            continue
        name = entry.get("Name", "")
        names = (stem.lower(), stem.lower().rpartition(".")[2], name.lower(), entry.get("GenericName", "").lower())
        rank = (
            9
            if not wanted
            else names.index(wanted)
            if wanted in names
            else 4
            if wanted == Path(words[0]).name.lower()
            else 9
        )
        best = min(best, (rank, len(words), words))
        if entry.get("NoDisplay", "false").lower() != "true":
            known.append(name)
    if best[0] < 9:
        return best[2]
    raise ValueError(f"no application {app!r} is installed; there are: {', '.join(sorted(set(known)))}")
