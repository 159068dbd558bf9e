"""Windows as the window manager knows them (EWMH): list, activate, close, and ask whether one answers.

Guarantees: a window that vanishes while it is looked at is left out, never an error; `close` and `activate` say whether
a window matched (OSWorld's server always says yes); `ping` returns at its limit, since some programs advertise
_NET_WM_PING and never answer (VLC). Source: Extended Window Manager Hints 1.5.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from guiderail.pool.vm.x11 import CLIENT_MESSAGE, SUBSTRUCTURE_NOTIFY, SUBSTRUCTURE_REDIRECT, X11, XError

PING_LIMIT_S = 0.5
PATIENCE = 3
PING_SLICE_S = 0.002
SOURCE_PAGER = 2
MOST = 500


@dataclass(frozen=True)
class WindowInfo:
    """A window of a program. `box`: x, y, width, height in pixels of the screen; `kind`: normal, dock, desktop, ..."""

    id: int
    title: str
    app: str  # WM_CLASS: "instance.Class"
    box: tuple[int, int, int, int]
    kind: str
    active: bool
    pid: int


class Windows:
    """The windows of one screen."""

    def __init__(self, x: X11) -> None:
        self.x = x
        self.silent: dict[int, int] = {}  # window -> pings in a row that it did not answer in time
        self._serial = int(time.monotonic() * 1000) & 0x7FFFFFFF
        x.select(x.root, SUBSTRUCTURE_NOTIFY)  # the answers to pings are sent to the root window

    def active(self) -> int:
        """The window that has the keyboard, 0 when none has."""
        found = self.x.numbers(self.x.root, "_NET_ACTIVE_WINDOW")
        return found[0] if found else 0

    def all(self) -> list[WindowInfo]:
        """All windows, oldest first; at most MOST."""
        active, found = self.active(), []
        for window in self.x.numbers(self.x.root, "_NET_CLIENT_LIST")[:MOST]:  # any program can write that list
            try:
                found.append(self._info(window, active))
            except XError:
                self.x.sync()  # raises when the server itself is gone; else the window vanished
        return found

    def _info(self, window: int, active: int) -> WindowInfo:
        x = self.x
        raw = x.property(window, "_NET_WM_NAME") or x.property(window, "WM_NAME")
        app = self.app(window)
        pid, kind = x.numbers(window, "_NET_WM_PID"), self.kind(window)
        title = raw.decode(errors="replace")
        return WindowInfo(window, title, app, x.box(window), kind, window == active, pid[0] if pid else 0)

    def app(self, window: int) -> str:
        """Its WM_CLASS: "instance.Class". Raises XError when it has vanished."""
        raw = self.x.property(window, "WM_CLASS")
        return ".".join(p.decode(errors="replace") for p in raw.split(b"\0") if p)

    def kind(self, window: int) -> str:
        """One of KINDS. Raises XError when it has vanished."""
        kinds = self.x.numbers(window, "_NET_WM_WINDOW_TYPE")
        names = {self.x.atom(f"_NET_WM_WINDOW_TYPE_{k.upper()}"): k for k in KINDS}
        return names.get(kinds[0], "normal") if kinds else "normal"  # xterm sets none

    def find(self, name: str, *, strict: bool = False, by_class: bool = False) -> WindowInfo | None:
        """The first window whose title (or class) is `name` (strict) or contains it, whatever its case."""
        for w in self.all():
            text = w.app if by_class else w.title
            if text == name if strict else name.lower() in text.lower():
                return w
        return None

    def activate(self, window: int) -> None:
        """Raise it and give it the keyboard."""
        self._ask_manager(window, "_NET_ACTIVE_WINDOW", [SOURCE_PAGER])

    def close(self, window: int) -> None:
        """Ask it to close, as its close button does."""
        self._ask_manager(window, "_NET_CLOSE_WINDOW", [0, SOURCE_PAGER])

    def _ask_manager(self, window: int, name: str, values: list[int]) -> None:
        self.x.message(self.x.root, window, name, values, SUBSTRUCTURE_NOTIFY | SUBSTRUCTURE_REDIRECT)
        self.x.sync()

    def ping(self, window: int, limit_s: float = PING_LIMIT_S) -> bool:
        """Whether the program of `window` has read everything that was sent to it before; False after `limit_s`.

        True at once for a window that takes no pings, False at once for one that was silent PATIENCE times (a late
        answer makes that good: it was only busy).
        """
        x = self.x
        if any(self._is_answer(e, window) for e in list(x.events)):
            self.silent.pop(window, None)
        if self.silent.get(window, 0) >= PATIENCE:
            return False
        try:
            if x.atom("_NET_WM_PING") not in x.numbers(window, "WM_PROTOCOLS"):
                return True
            self._serial = self._serial % 0x7FFFFFFF + 1
            x.events.clear()
            x.message(window, window, "WM_PROTOCOLS", [x.atom("_NET_WM_PING"), self._serial, window])
            end = time.monotonic() + limit_s
            while time.monotonic() < end:
                x.sync()
                if any(self._is_answer(e, window, self._serial) for e in list(x.events)):
                    self.silent.pop(window, None)
                    return True
                time.sleep(PING_SLICE_S)
        except XError:
            x.sync()
            return True  # it vanished
        self.silent[window] = self.silent.get(window, 0) + 1
        return False

    def _is_answer(self, event: bytes, window: int, wanted: int = 0) -> bool:
        """Whether an event is the window's answer to a ping, to the one numbered `wanted` if given."""
        if event[0] & 0x7F != CLIENT_MESSAGE:
            return False
        _, what, serial, who = struct.unpack_from("<IIII", event, 8)
        return (what, who) == (self.x.atom("_NET_WM_PING"), window) and wanted in (0, serial)

    def managed(self) -> bool:
        """Whether a window manager runs and has said how many desktops it has.

        That number is the last thing it tells, and a panel that starts without it sleeps a second before it asks again.
        """
        names = ("_NET_SUPPORTING_WM_CHECK", "_NET_NUMBER_OF_DESKTOPS")
        return all(self.x.numbers(self.x.root, name) for name in names)


KINDS = ("desktop", "dock", "toolbar", "menu", "utility", "splash", "dialog", "normal")
