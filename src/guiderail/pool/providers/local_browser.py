"""MiniWoB++ pages in headless Chromium on this machine, started inside the server's event loop.

Guarantees: at most `browsers` Chromium processes at a time, pages spread evenly over them; a browser that has died is
noticed (its pages are not `ready`) and replaced when the next page is asked for; `stop` leaves no process.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

from guiderail.envs.browser import Browser, BrowserEnv
from guiderail.envs.types import Env
from guiderail.pool.providers.local import LocalProvider

log = logging.getLogger("guiderail.pool.local_browser")
OWN_LIMIT = 0.9  # a page gives up a little before the pool does, since it can say why


class LocalBrowserProvider(LocalProvider):
    """Pages of `browsers` Chromium processes; the pages of one browser draw in turn."""

    name = "local_browser"

    def __init__(self, path: str = "", *, step_ms: int = 300, call_timeout_s: float = 20.0, browsers: int = 1) -> None:
        super().__init__()
        if browsers < 1:
            raise ValueError(f"browsers = {browsers}: at least one is needed")
        self.path, self.step_ms, self.call_timeout_s = path or None, step_ms, call_timeout_s * OWN_LIMIT
        self.browsers: list[Browser | None] = [None] * browsers
        self.starting = [asyncio.Lock() for _ in range(browsers)]
        self.home: WeakKeyDictionary[BrowserEnv, Browser] = WeakKeyDictionary()
        self.booting = [0] * browsers

    async def start(self) -> None:
        """Launch the browsers. Raises chromium.BrowserNotFound, InfraError."""
        await asyncio.gather(*(self._browser(i) for i in range(len(self.browsers))))

    async def _browser(self, i: int) -> Browser:
        """Browser `i`, launched again if it has died. The lock is held by those who wait for this launch only."""
        async with self.starting[i]:
            browser = self.browsers[i]
            if browser is None or not browser.alive:
                if browser is not None:
                    log.warning("browser %d (guard pid %d) has died; starting another", i, browser.pid)
                    await browser.close()
                browser = await Browser.launch(self.path, step_ms=self.step_ms, call_timeout_s=self.call_timeout_s)
                log.info("browser %d: %s (guard pid %d)", i, browser.found.path, browser.pid)
                self.browsers[i] = browser
            return browser

    async def new_env(self) -> Env:
        """A fresh page in the browser with the fewest pages."""
        pages = [n + sum(b is x for x in self.home.values()) for n, b in zip(self.booting, self.browsers, strict=True)]
        i = pages.index(min(pages))
        self.booting[i] += 1
        try:
            browser = await self._browser(i)
            env = await browser.new_env()
        finally:
            self.booting[i] -= 1
        self.home[env] = browser
        return env

    def healthy(self, env: Env) -> bool:
        """Whether the page's browser is alive. A page that crashed while idle shows at its next reset."""
        return isinstance(env, BrowserEnv) and env in self.home and self.home[env].alive

    async def stop(self) -> None:
        """End all pages and browsers. Idempotent."""
        await super().stop()
        browsers, self.browsers = self.browsers, [None] * len(self.browsers)
        await asyncio.gather(*(b.close() for b in browsers if b is not None))
