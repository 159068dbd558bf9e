"""Blocking calls of a cloud's SDK, done in threads.

Guarantees: a throttled call is tried again after PAUSES_S; what the SDK raises becomes a ProviderError; a call that is
cancelled `to_the_end` returns only when its request is answered; secrets are cut out of every error text.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from guiderail.pool.providers.base import ProviderError, Throttled

T = TypeVar("T")
THREADS = 16
PAUSES_S = (0.5, 1.5)  # between tries of a throttled call; after them the pool's own pauses begin


class ApiFault(ProviderError):
    """No reply, or a fault of the API's: whether the call was carried out is unknown."""

    code = "api_fault"


class Busy(ProviderError):
    """The machine is in a state in which it cannot be ended; it can be a little later."""

    code = "busy"


class CloudCalls(ABC):
    """What makes the calls of one provider."""

    name = "cloud"

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}
        self._threads: ThreadPoolExecutor | None = None

    @abstractmethod
    def explain(self, error: Exception) -> ProviderError:
        """What an exception of the SDK means to the pool."""

    async def call(self, work: Callable[[], T], *, to_the_end: bool = False) -> T:
        """`work` in a thread; a throttled one twice more. Raises ProviderError, never what the SDK raises.

        `to_the_end`: when cancelled, wait until the request on its way is answered.
        """
        for pause in (*PAUSES_S, 0.0):
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=self.name)
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if to_the_end:
                    await asyncio.wait([future])
                raise
            except Exception as e:
                error = e if isinstance(e, ProviderError) else self.explain(e)
                if not isinstance(error, Throttled) or not pause:
                    raise self._without_secrets(error) from None
                await asyncio.sleep(pause)
        raise AssertionError

    def _without_secrets(self, error: ProviderError) -> ProviderError:
        text = str(error)
        for secret in self.secrets.values():
            text = text.replace(secret, "***")
        return type(error)(text)

    async def stop(self) -> None:
        """Let the threads go; machines stay."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


def classify(code: str, table: Mapping[type[ProviderError], tuple[str, ...]]) -> type[ProviderError] | None:
    """The first class one of whose codes is `code` or begins it (Throttling stands for Throttling.User)."""
    return next((kind for kind, codes in table.items() if code.startswith(codes)), None)
