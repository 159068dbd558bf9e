"""Chrome DevTools Protocol over a pipe: NUL-separated JSON, many sessions on one connection, asyncio.

Guarantees: every sent command ends in its result, in CdpError (the browser refused it) or in InfraError (the target or
the browser is gone): no future is left hanging when a page crashes or the process dies. Commands go out in order.
Does not retry and sets no time limits: the caller wraps an operation in its own deadline.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import orjson

from guiderail.envs.types import InfraError

Json = dict[str, Any]
Handler = Callable[[Json], None]
LOST = ("Inspector.targetCrashed", "Target.targetCrashed", "Inspector.detached")


class CdpError(RuntimeError):
    """The browser answered a command with an error (wrong arguments, no such node, ...)."""


class Connection(asyncio.Protocol):
    """One pipe to one browser. Made by `connect`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._next = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[Json]]] = {}
        self._handlers: dict[tuple[str, str], list[Handler]] = defaultdict(list)
        self._dead: dict[str, str] = {}
        self.closed = asyncio.Event()

    @classmethod
    async def connect(cls, read_fd: int, write_fd: int) -> Connection:
        """Take over both descriptors: `read_fd` carries what the browser says, `write_fd` what we send."""
        loop = asyncio.get_running_loop()
        self = cls()
        self._reader, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(read_fd, "rb", 0))
        self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(write_fd, "wb", 0))
        return self

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Split complete messages off the stream and route them."""
        self._buffer += data
        if 0 not in data:
            return
        *messages, rest = self._buffer.split(b"\0")
        self._buffer = rest
        for raw in messages:
            self._route(orjson.loads(raw))

    def connection_lost(self, exc: Exception | None) -> None:
        """The browser closed its end: everything that waits fails."""
        self._fail_all("the browser process ended" + (f" ({exc})" if exc else ""))

    # -- use ----------------------------------------------------------------------------------------------------------
    def send(self, method: str, params: Json | None = None, session: str = "") -> asyncio.Future[Json]:
        """Write one command; the future resolves to its result. Sent at once: no need to await before the next one."""
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        reason = self._dead.get(session) or self._dead.get("")
        if reason or self._writer is None or self._writer.is_closing():
            future.set_exception(InfraError(f"{method}: {reason or 'the connection is closed'}", "crash"))
            return future
        self._next += 1
        message: Json = {"id": self._next, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        self._waiting[self._next] = (session, future)
        self._writer.write(orjson.dumps(message) + b"\0")
        return future

    def on(self, method: str, handler: Handler, session: str = "") -> None:
        """Call `handler(params)` for each event `method` of `session`."""
        self._handlers[session, method].append(handler)

    def once(self, method: str, session: str = "") -> asyncio.Future[Json]:
        """A future for the next event `method`; fails like a command when the target is lost."""
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        self._next += 1
        key = self._next
        self._waiting[key] = (session, future)

        def arrived(params: Json) -> None:
            self._handlers[session, method].remove(arrived)
            self._waiting.pop(key, None)
            if not future.done():
                future.set_result(params)

        self.on(method, arrived, session)
        return future

    def forget(self, session: str) -> None:
        """Drop handlers of a session and fail what still waits on it."""
        self._fail_session(session, "the page was closed")
        for key in [k for k in self._handlers if k[0] == session]:
            del self._handlers[key]

    def close(self) -> None:
        """Close both pipe ends; pending commands fail."""
        self._fail_all("the connection was closed")
        for end in (self._writer, self._reader):
            if end is not None:
                end.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    def _route(self, message: Json) -> None:
        if "id" in message:
            entry = self._waiting.pop(message["id"], None)
            if entry is None or entry[1].done():
                return
            if "error" in message:
                error = message["error"]
                entry[1].set_exception(CdpError(f"{error.get('message')} {error.get('data', '')}".strip()))
            else:
                entry[1].set_result(message["result"])
            return
        session, method, params = message.get("sessionId", ""), message.get("method", ""), message.get("params", {})
        if method in LOST and session:
            self._fail_session(session, f"the page crashed ({method})")
        if method == "Target.detachedFromTarget":
            self._fail_session(params.get("sessionId", ""), "the page is gone (detached)")
        for handler in list(self._handlers.get((session, method), ())):
            handler(params)

    def _fail_session(self, session: str, reason: str) -> None:
        if not session:
            return
        self._dead.setdefault(session, reason)
        for key in [k for k, (s, _) in self._waiting.items() if s == session]:
            _, future = self._waiting.pop(key)
            if not future.done():
                future.set_exception(InfraError(reason, "crash"))

    def _fail_all(self, reason: str) -> None:
        self._dead.setdefault("", reason)
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(InfraError(reason, "crash"))
        self.closed.set()


def _retrieve(future: asyncio.Future[Json]) -> None:
    """Mark an exception as seen: pipelined commands are checked through the last one of a batch, and by gather."""
    if not future.cancelled():
        future.exception()
