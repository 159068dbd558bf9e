"""What all pages of one browser share: the connection, the settings, and the right to draw.

Guarantees: frames are drawn one at a time (two pages drawing at once crash the browser), also when a caller of `frame`
is cancelled half way; refused commands and time-outs become InfraError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from guiderail.envs.cdp import CdpError, Connection, Json
from guiderail.envs.types import InfraError


@contextlib.asynccontextmanager
async def deadline(what: str, seconds: float) -> AsyncIterator[None]:
    """Turn a time-out or a refused command into InfraError."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise InfraError(f"{what}: no answer within {seconds:g} s", "timeout") from None
    except CdpError as e:
        raise InfraError(f"{what}: {e}", "crash") from e


class Channel:
    """One browser as its pages see it.

    `step_ms`: virtual milliseconds after an action; `call_timeout_s`: limit of each env call, a frame may take half of
    it; `begin_frame`: whether the browser draws on command (headless shell) or by itself.
    """

    def __init__(self, cdp: Connection, *, begin_frame: bool, step_ms: int, call_timeout_s: float) -> None:
        self.cdp = cdp
        self.begin_frame = begin_frame
        self.step_ms = step_ms
        self.call_timeout_s = call_timeout_s
        self._drawing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Json]] = set()

    async def frame(self, session: str, params: Json) -> Json:
        """One beginFrame, alone in this browser. Raises InfraError(timeout) when the page does not draw."""
        task = asyncio.ensure_future(self._alone(session, params))
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)  # a cancelled caller must not let the next frame overlap this one

    async def _alone(self, session: str, params: Json) -> Json:
        async with self._drawing:
            future = self.cdp.send("HeadlessExperimental.beginFrame", params, session)
            done, _ = await asyncio.wait([future], timeout=self.call_timeout_s / 2)
            if not done:
                self.cdp.send("Runtime.terminateExecution", session=session)  # a hung script holds everybody's lock
                await asyncio.wait([future], timeout=2)
                raise InfraError("the page did not draw a frame in time", "timeout")
            return future.result()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
