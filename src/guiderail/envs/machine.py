"""A desktop machine at the other end of OSWorld's VM-side HTTP protocol: our in-VM server, or a stock OSWorld image.

Guarantees: an action is sent once and as a typed action (`/act`), or, to a stock server, as the constant call that
`stock` renders; no call waits longer than its limit, and any may raise what `machine_wire` makes of a missing or
refusing answer. Commands go to `/setup/execute`, so a strict server runs them for who prepares and judges, never for
the agent.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from guiderail.actions.types import Action, Answer, Finish, Open, Wait
from guiderail.actions.wire import action_to_json
from guiderail.envs import machine_tree, stock
from guiderail.envs.machine_wire import Refusal, Wire
from guiderail.envs.types import InfraError

CALL_S, LONG_S = 20.0, 130.0
STOCK_QUIET_S, STOCK_LIMIT_S = 0.5, 5.0


@dataclass(frozen=True)
class Ran:
    """How a command in the machine ended."""

    status: int
    output: str
    error: str


@dataclass(frozen=True)
class Seen:
    """A screen: its PNG and what the machine measured (settled, settle_ms, ...)."""

    png: bytes = field(repr=False)
    info: dict[str, Any] = field(default_factory=dict)


class Machine:
    """One machine. `await machine.hello()` first: it learns which kind of server is there."""

    def __init__(
        self, url: str, *, uds: str = "", token: str = "", name: str = "", call_timeout_s: float = CALL_S
    ) -> None:
        """`url`: http://host:port of the server; `uds`: its unix socket instead; `token`: of our own server; `name`:
        whose machine it must be (our own server refuses calls for another's)."""
        self._wire = Wire(url, uds=uds, token=token, name=name)
        self.url, self.where, self.call_timeout_s = url, self._wire.where, call_timeout_s
        self.fence = 0  # token of the lease that acts; our server refuses older ones
        self.resets = False  # whether it can make its desktop anew in place
        self.home = "/home/user"
        self.size = (0, 0)
        self.about: dict[str, Any] = {}

    @property
    def ours(self) -> bool:
        """Whether our own server is there; known after `hello`."""
        return self._wire.ours

    async def hello(self) -> None:
        """Learn what is there. Raises InfraError, Refusal (the token is wrong)."""
        told = await self._wire.greet(CALL_S)
        if self.ours:
            self.about, self.home, self.size = told, told["home"], tuple(told["size"])
            self.resets = bool(told.get("resets", False))
            return
        size = (await self._wire.send("POST", "/screen_size", CALL_S)).json()
        self.size = int(size["width"]), int(size["height"])
        self.home = posixpath.dirname((await self._wire.send("POST", "/desktop_path", CALL_S)).json()["desktop_path"])

    async def close(self) -> None:
        """Drop the connection; the machine stays."""
        await self._wire.close()

    # -- the screen ---------------------------------------------------------------------------------------------------
    async def act(self, action: Action) -> Seen:
        """Do `action` once, let the screen settle, look. Raises ValueError with nothing done, InfraError."""
        if self.ours:
            extra = action.seconds if isinstance(action, Wait) else 0.0
            return await self._picture(
                "/act", {"action": action_to_json(action), **self._token()}, self.call_timeout_s + extra
            )
        match action:
            case Wait(seconds):
                stock.check_wait(seconds)
                await asyncio.sleep(seconds)
            case Open(app):
                await self.launch(["gtk-launch", app])
            case Answer() | Finish():
                pass
            case _:
                command = ["python3", "-c", stock.render(action, *self.size)]
                ran = await self._execute("/execute", command, False, self.call_timeout_s)
                if ran.status:  # OSWorld's own client never looks
                    raise InfraError(f"{self.where}: the action failed there: {ran.error.strip()[-300:]}", "crash")
        return await self.look()

    async def look(self, *, settle: bool = True) -> Seen:
        """The screen; with `settle` once it has settled. Raises InfraError."""
        if self.ours:
            return await self._picture("/look", {"settle": settle}, self.call_timeout_s)
        png = (await self._wire.send("GET", "/screenshot", self.call_timeout_s)).content
        began = since = time.monotonic()
        while settle and time.monotonic() - since < STOCK_QUIET_S and time.monotonic() - began < STOCK_LIMIT_S:
            await asyncio.sleep(0.1)
            now = (await self._wire.send("GET", "/screenshot", self.call_timeout_s)).content
            if now != png:
                png, since = now, time.monotonic()
        return Seen(png, {"settle_ms": round(1000 * (time.monotonic() - began), 1)})

    async def reset(self) -> Seen:
        """A fresh desktop, in place. Raises Refusal where the server cannot (a stock one), InfraError."""
        if not self.resets:
            raise Refusal(f"{self.where} cannot reset itself; its provider makes it anew", 501, "unsupported")
        return await self._picture("/reset", self._token(), max(self.call_timeout_s, 40.0))

    def _token(self) -> dict[str, int]:
        return {"fence": self.fence} if self.fence else {}

    async def _picture(self, path: str, body: dict[str, Any], timeout: float) -> Seen:
        reply = await self._wire.send("POST", path, timeout, json=body)
        if not reply.content.startswith(b"\x89PNG"):
            raise InfraError(f"{self.where}{path}: no picture came back", "crash")
        return Seen(reply.content, json.loads(reply.headers.get("x-guiderail", "{}")))

    # -- files --------------------------------------------------------------------------------------------------------
    async def read(self, path: str) -> bytes:
        """Bytes of a file. Raises FileNotFoundError, Refusal, InfraError."""
        return (await self._wire.send("POST", "/file", LONG_S, data={"file_path": path})).content

    async def write(self, path: str, data: bytes) -> None:
        """Write a whole file; its folders are made. Raises Refusal, InfraError."""
        sent = {"file_data": (posixpath.basename(path), data)}
        await self._wire.send("POST", "/setup/upload", LONG_S, data={"file_path": path}, files=sent)

    async def list_directory(self, path: str) -> dict[str, Any]:
        """OSWorld's tree {"type", "name", "children"}. Raises FileNotFoundError, Refusal, InfraError."""
        reply = await self._wire.send("POST", "/list_directory", LONG_S, json={"path": path})
        tree: dict[str, Any] = reply.json()["directory_tree"]
        return tree

    async def tree(self, path: str = "") -> dict[str, machine_tree.Entry]:
        """All that is below `path` (default: the home), by its path from there; what was changed is two of these."""
        ran = await self.execute(machine_tree.command(path or self.home))
        if ran.status:
            raise Refusal(f"{self.where}: {path or self.home} cannot be listed: {ran.error.strip()[-300:]}", 500)
        return machine_tree.entries(ran.output)

    # -- programs -----------------------------------------------------------------------------------------------------
    async def execute(self, command: Sequence[str] | str, *, shell: bool = False, timeout_s: float = 120.0) -> Ran:
        """Run a command to its end (a text with `shell`, else words). Raises Refusal: it does not start; InfraError."""
        return await self._execute("/setup/execute", command, shell, timeout_s)

    async def _execute(self, path: str, command: Sequence[str] | str, shell: bool, timeout_s: float) -> Ran:
        words = command if isinstance(command, str) else list(command)
        body = {"command": words, "shell": shell, "timeout": timeout_s}
        told = (await self._wire.send("POST", path, timeout_s + 10.0, json=body)).json()
        return Ran(int(told.get("returncode", 0)), str(told.get("output", "")), str(told.get("error", "")))

    async def launch(self, command: Sequence[str] | str, *, shell: bool = False) -> None:
        """Start a program that goes on. Raises Refusal, InfraError."""
        words = command if isinstance(command, str) else list(command)
        await self._wire.send("POST", "/setup/launch", CALL_S, json={"command": words, "shell": shell})

    async def open_file(self, path: str) -> None:
        """Open a file with its program; returns when its window is there. Raises FileNotFoundError, Refusal."""
        await self._wire.send("POST", "/setup/open_file", LONG_S, json={"path": path})

    async def activate(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Raise a window by its title (or class). Raises Refusal when there is none (our server only)."""
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._wire.send("POST", "/setup/activate_window", CALL_S, json=body)

    async def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Close a window by its title (or class). Raises Refusal when there is none (our server only)."""
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._wire.send("POST", "/setup/close_window", CALL_S, json=body)

    async def change_wallpaper(self, path: str) -> None:
        """Raises Refusal."""
        await self._wire.send("POST", "/setup/change_wallpaper", CALL_S, json={"path": path})

    async def windows(self) -> list[dict[str, Any]]:
        """Windows, oldest first: id, title, app (class), box (x, y, width, height), kind, active, pid."""
        if self.ours:
            found: list[dict[str, Any]] = (await self._wire.send("GET", "/windows", CALL_S)).json()["windows"]
            return found
        return stock.windows((await self.execute(["wmctrl", "-lGpx"])).output)

    async def accessibility(self) -> str:
        """The accessibility tree: XML with one element per accessible (OSWorld's names and namespaces)."""
        return str((await self._wire.send("GET", "/accessibility", LONG_S)).json()["AT"])

    async def terminal(self) -> str:
        """Text of the terminal that is shown."""
        return str((await self._wire.send("GET", "/terminal", LONG_S)).json()["output"] or "")

    async def wallpaper(self) -> bytes:
        """The wallpaper's file. Raises FileNotFoundError for a plain colour (our server)."""
        return (await self._wire.send("POST", "/wallpaper", LONG_S)).content

    async def window_size(self, app_class: str) -> tuple[int, int]:
        """Width and height of the window of that class. Raises Refusal."""
        told = (await self._wire.send("POST", "/window_size", CALL_S, data={"app_class_name": app_class})).json()
        return int(told["width"]), int(told["height"])

    async def platform(self) -> str:
        """Linux, Windows or Darwin."""
        return (await self._wire.send("GET", "/platform", CALL_S)).text.strip()
