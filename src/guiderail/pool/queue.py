"""Who waits for a machine, first come first served.

Guarantees: a request id stands in the queue once, however often it is asked for, and gets one lease, but only for the
holder and the time that it was first asked for with; an asker whose time is over leaves nothing behind unless another
asks for the same. Joining, leaving and counting cost the same whatever the length.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass

from guiderail.pool.leases import Lease, LeaseError, RequestReused


@dataclass(eq=False)
class Waiter:
    """One request for a machine; `askers` counts the connections that wait for it (a retry joins the first)."""

    lease: asyncio.Future[Lease]
    holder: str
    ttl_s: float
    request_id: str
    askers: int = 0

    @property
    def granted(self) -> Lease | None:
        """The lease, once there is one."""
        done = self.lease.done() and not self.lease.cancelled() and self.lease.exception() is None
        return self.lease.result() if done else None


class Queue:
    """Waiters in order, and the requests answered already whose leases live."""

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()  # none of them is answered
        self.requests: dict[str, Waiter] = {}

    def join(self, holder: str, ttl_s: float, request_id: str, live: Container[str]) -> Waiter:
        """The waiter of `request_id`, at the end of the queue if it is new; `live`: ids of living leases.

        Raises RequestReused when the id came with another holder or time.
        """
        waiter = self.requests.get(request_id)
        if waiter is not None and (not waiter.lease.done() or (waiter.granted and waiter.granted.id in live)):
            if (waiter.holder, waiter.ttl_s) != (holder, ttl_s):
                raise RequestReused(f"request id {request_id!r} was used for another allocation")
            return waiter
        waiter = Waiter(asyncio.get_running_loop().create_future(), holder, ttl_s, request_id)
        self.waiters[waiter] = None
        if request_id:
            self.requests[request_id] = waiter
        return waiter

    def restore(self, request_id: str, lease: Lease) -> None:
        """A request that an earlier server answered with `lease`."""
        if request_id:
            self.requests[request_id] = Waiter(
                asyncio.get_running_loop().create_future(), lease.holder, lease.ttl_s, request_id
            )
            self.requests[request_id].lease.set_result(lease)

    def next(self) -> Waiter | None:
        """Take out who waits longest."""
        while self.waiters:
            waiter = self.waiters.popitem(last=False)[0]
            if not waiter.lease.done():
                return waiter
        return None

    def forget(self, waiter: Waiter) -> None:
        """The request was not answered; asked again, it is a new one."""
        self.waiters.pop(waiter, None)
        if self.requests.get(waiter.request_id) is waiter:
            del self.requests[waiter.request_id]

    def refuse_all(self, e: LeaseError) -> None:
        """Tell everybody who waits."""
        while (waiter := self.next()) is not None:
            self.forget(waiter)
            waiter.lease.set_exception(e)
            waiter.lease.exception()  # nobody may be there any more to hear it

    def prune(self, live: Container[str]) -> None:
        """Forget requests whose leases have ended."""
        self.requests = {
            k: w for k, w in self.requests.items() if not w.lease.done() or (w.granted and w.granted.id in live)
        }

    def __len__(self) -> int:
        return len(self.waiters)
