"""Loses replies: passes requests on, and now and then drops the reply with its connection after the server gave it."""

from __future__ import annotations

import asyncio
import contextlib
import random


class Proxy:
    """Listens on a port of its own; `rate` of all replies are lost while it is above 0."""

    def __init__(self, target: int, seed: int) -> None:
        self.target, self.rng, self.rate = target, random.Random(seed), 0.0
        self.lost = self.passed = 0
        self.server: asyncio.Server | None = None
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()  # asyncio itself holds those of dropped connections weakly

    async def start(self) -> None:
        """Listen."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Take no more, and end what waits."""
        if self.server is not None:
            self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass_on(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            back, there = await asyncio.open_connection("127.0.0.1", self.target, limit=1 << 22)
            while True:
                there.write(await _message(reader))
                reply = await _message(back)
                if self.rng.random() < self.rate:
                    self.lost += 1
                    break
                self.passed += 1
                writer.write(reply)
        for side in (there, writer):
            if side is not None:
                side.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP message with a content length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)
