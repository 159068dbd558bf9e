"""MiniWoB++ pages in a headless Chromium: one browser, many pages, one screen each.

Guarantees: the browser, its processes and its files are gone after `close`, and also after this process was killed;
pages have a context and a process each, so one that crashes or hangs is one env lost (see `miniwob`).
Launching goes through our own guard and pipe (`launch`, `cdp`), not through Playwright: a pipe needs no port, and the
guard outlives a killed parent. A plain Chrome (no headless shell) works too, slower: it cannot draw on command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType

from guiderail.envs import chromium, launch
from guiderail.envs.channel import Channel
from guiderail.envs.miniwob import BrowserEnv

__all__ = ["Browser", "BrowserEnv"]


class Browser:
    """One Chromium. `async with Browser.launch() as browser: env = await browser.new_env()`."""

    def __init__(self, running: launch.Running, found: chromium.Chromium, step_ms: int, call_timeout_s: float) -> None:
        self._running = running
        self.found = found
        self.channel = Channel(
            running.connection, begin_frame=running.begin_frame, step_ms=step_ms, call_timeout_s=call_timeout_s
        )

    @classmethod
    def launch(cls, path: str | None = None, *, step_ms: int = 300, call_timeout_s: float = 20.0) -> Launch:
        """Start a browser: `await Browser.launch()` or `async with Browser.launch() as browser`.

        `path`: a browser, None or "" = find one; `step_ms`: virtual milliseconds a page lives after an action;
        `call_timeout_s`: limit of each env call.
        Raises chromium.BrowserNotFound, or InfraError when it does not start.
        """
        return Launch(path, step_ms, call_timeout_s)

    @property
    def pid(self) -> int:
        """Process id of the guard that holds the browser's processes."""
        return self._running.guard.pid

    @property
    def alive(self) -> bool:
        """Whether the browser can still be talked to; when not, launch another one."""
        return not self._running.connection.closed.is_set()

    async def new_env(self) -> BrowserEnv:
        """A fresh page. Raises InfraError."""
        return await BrowserEnv.open(self.channel)

    async def close(self) -> None:
        """End the browser and all its processes, remove its files. Idempotent."""
        await self._running.stop()

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class Launch:
    """A launch that may be awaited or entered."""

    def __init__(self, path: str | None, step_ms: int, call_timeout_s: float) -> None:
        self._path, self._step_ms, self._call_timeout_s = path, step_ms, call_timeout_s
        self._browser: Browser | None = None

    async def _start(self) -> Browser:
        found = await asyncio.to_thread(chromium.find, self._path)
        self._browser = Browser(await launch.start(found), found, self._step_ms, self._call_timeout_s)
        return self._browser

    def __await__(self) -> Generator[object, None, Browser]:
        return self._start().__await__()

    async def __aenter__(self) -> Browser:
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._browser is not None:
            await self._browser.close()
