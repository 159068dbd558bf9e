"""The calls of one lease, each done at most once.

Guarantees: a request id is acted on once, however often and however late it comes back; every asker gets the same
reply while it is kept (the last `KEPT_REPLIES`); one call runs at a time. With a store that outlives the server, the
intent to act is written before the act and the outcome after it, so that this also holds over a kill of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from guiderail.pool.leases import Busy, RequestReused, Unwritten
from guiderail.pool.store import Store
from guiderail.pool.wire import Reply

KEPT_REPLIES = 2  # a client asks one thing at a time; a screen has megabytes


@dataclass
class Calls:
    """Every request id ever seen (with a digest of what was asked) and the last replies."""

    lease: str
    store: Store | None = None  # None: nothing outlives this process anyway
    seen: dict[str, int] = field(default_factory=dict)
    replies: dict[str, asyncio.Task[Reply] | Reply] = field(default_factory=dict)
    running: asyncio.Task[Reply] | None = None
    started: bool = False  # a reset succeeded
    over: bool = False  # the environment ended the episode
    task: str = ""  # of the episode, for front ends that judge by it; kept over a restart
    state: dict[str, Any] = field(default_factory=dict)  # what a front end remembers of the episode; not kept

    async def once(self, request_id: str, digest: int, act: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
        """`await act()` the first time, its reply ever after. Raises Busy, RequestReused, Unwritten."""
        if request_id in self.seen:
            if self.seen[request_id] != digest:
                raise RequestReused(f"request id {request_id!r} was used for another request on this lease")
            reply = self.replies.get(request_id)
            if reply is None:
                raise RequestReused(f"request {request_id!r} was done, but its reply is no longer kept")
            return reply if isinstance(reply, Reply) else await asyncio.shield(reply)
        if self.running is not None:
            raise Busy("another call is running on this lease; one screen takes one call at a time")
        if self.store is not None:
            try:
                self.store.call_begun(self.lease, request_id, digest)
            except sqlite3.Error as e:
                raise Unwritten(f"the pool cannot write its state, so nothing was done: {e}") from e
        task = asyncio.get_running_loop().create_task(self._run(request_id, act))
        self.running, self.seen[request_id], self.replies[request_id] = task, digest, task
        while len(self.replies) > KEPT_REPLIES:
            del self.replies[next(iter(self.replies))]
        return await asyncio.shield(task)  # a caller that hangs up does not stop the call

    async def _run(self, request_id: str, act: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
        try:
            reply = await act()
            if self.store is not None:
                with contextlib.suppress(sqlite3.Error):  # the next server fences the lease: outcome not known
                    self.store.call_done(self.lease, request_id, reply, self.started, self.over, self.task)
            return reply
        finally:
            self.running = None
