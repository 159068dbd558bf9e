"""What a provider of environments must offer to the pool.

A provider owns whatever all its environments share (a browser, a cloud account). The pool guarantees that `start` is
awaited once before anything else, that `new_env` may run for several slots at a time, and that a broken environment
is closed before its replacement is asked for. A provider may raise anything from `new_env`; the pool tries again
later.
"""

from __future__ import annotations

from typing import Protocol

from guiderail.envs.types import Env


class Provider(Protocol):
    """Makes environments."""

    async def start(self) -> None:
        """Bring up what is shared. An exception here ends the server with its message."""
        ...

    async def new_env(self) -> Env:
        """A fresh environment; brings back what is shared if that has died."""
        ...

    def healthy(self, env: Env) -> bool:
        """Cheap check (no I/O) that `env` can still be used."""
        ...

    async def stop(self) -> None:
        """Give everything back; environments are closed already. Idempotent."""
        ...
