"""Who may keep a connection open, and for how long without saying anything.

Guarantees: connections never take the files that machines, probes and the state need, so that strangers (no token is
asked for before a request is read) cannot have machines judged dead; a connection that has not sent the head of a
request within HEAD_S seconds is closed. One beyond the limit is closed at once: the pool's client asks again.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

log = logging.getLogger("guiderail.pool")
HEAD_S = 10.0
SAY_S = 10.0
MOST_FILES = 65_536  # what the soft limit is raised to, as far as the hard one allows
BACKLOG = 64  # asyncio takes up to so many connections at a time before it asks us about the first
OWN_FILES, FILES_A_SLOT = 64 + 3 * BACKLOG, 4  # the server's own and those on their way; a machine's, probe and pipes
FEWEST = 16


def connection_limit(slots: int) -> int:
    """Connections that `slots` machines leave room for; raises the soft limit of open files. Raises ValueError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    files = most if soft == resource.RLIM_INFINITY else soft
    left = files - OWN_FILES - FILES_A_SLOT * slots
    if left < FEWEST:
        need = OWN_FILES + FILES_A_SLOT * slots + FEWEST
        raise ValueError(f"{slots} slots need {need} open files, but this process may have {files}: raise `ulimit -n`")
    return left


def door(limit: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol for at most `limit` connections."""

    class Door(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        """One connection. `timer` runs while a head is awaited."""

        timer: asyncio.TimerHandle | None = None
        said = -1e9

        def connection_made(self, transport: Any) -> None:
            """Let it in, or not."""
            super().connection_made(transport)
            if len(self.connections) > limit:
                if time.monotonic() - Door.said > SAY_S:  # whoever floods us must not fill the disk
                    Door.said = time.monotonic()
                    log.warning("connections are closed: %d are open, as many as there may be", limit)
                transport.abort()
                return
            self.wait()

        def data_received(self, data: bytes) -> None:
            """The timer goes on while a head is only half there."""
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self.wait()
            elif self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            """No timer outlives its connection."""
            if self.timer is not None:
                self.timer.cancel()
            super().connection_lost(exc)

        def wait(self) -> None:
            """Start the timer unless it runs."""
            if self.timer is None:
                self.timer = asyncio.get_running_loop().call_later(HEAD_S, self.transport.abort)

    return Door
