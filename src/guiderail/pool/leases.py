"""The book of slots and leases: who may use which slot, until when. Pure: no clock, no I/O, no locks.

Guarantees: a slot has at most one lease; a lease lives until it is released, its slot goes down, or its deadline
passes while no call is running on it (a running call pins it, and is itself bounded by the server's call timeout);
fencing tokens rise for ever, so a token is never valid twice; every refusal says which of the ways a lease ended it
was. Whoever owns the book is told of every end, in whatever way it came, by `on_end`.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

SlotState = Literal["down", "idle", "reserved", "leased"]
REMEMBERED = 4096


class LeaseError(Exception):
    """A lease was refused. `code` is the class on the wire, `status` the HTTP status."""

    code = "lease_error"
    status = 409


class UnknownLease(LeaseError):
    """No such lease was ever given out (or it ended very long ago)."""

    code = "unknown_lease"
    status = 404


class LeaseEnded(LeaseError):
    """The lease was ours but is over: expired, revoked (its slot broke) or closed."""

    code = "lease_ended"


class StaleToken(LeaseError):
    """The fencing token does not belong to the lease."""

    code = "stale_token"


class Busy(LeaseError):
    """Another call is running on the lease."""

    code = "busy"


class RequestReused(LeaseError):
    """A request id came back for something else, or so late that its reply is gone."""

    code = "request_reused"


class NoSlot(LeaseError):
    """No slot became free in time. `boot_s`: how long a machine that is on its way may take, 0 where none is."""

    code = "no_slot"
    status = 503

    def __init__(self, message: str, boot_s: float = 0.0) -> None:
        super().__init__(message)
        self.boot_s = boot_s


class BudgetExhausted(LeaseError):
    """No machine is there or coming, and none may be bought any more."""

    code = "budget_exhausted"
    status = 403


class ProvisionFailed(LeaseError):
    """No machine is there, and the provider says that trying again cannot help."""

    code = "provision_failed"
    status = 403


class Unwritten(LeaseError):
    """The state file takes nothing (a full disk): nothing was done."""

    code = "storage"
    status = 503


class Draining(LeaseError):
    """The server is shutting down."""

    code = "draining"
    status = 503


@dataclass
class Lease:
    """A slot lent to `holder` until `deadline` (seconds of the caller's clock); `calls` = calls running on it now."""

    id: str
    token: int
    slot: int
    holder: str
    ttl_s: float
    deadline: float
    granted: float
    calls: int = 0


def _nobody(lease: Lease, why: str, broken: bool) -> None:
    """Nobody is told."""


@dataclass
class LeaseTable:
    """All slots 0..size-1 and their leases. `now` is always passed in and must not go backwards.

    A slot whose lease has ended is idle, or, with `cleaned`, down until somebody has cleaned it and calls `up`.
    `on_end(lease, why, broken)` is called after each end; broken = the slot went down under the lease.
    """

    size: int
    cleaned: bool = False
    on_end: Callable[[Lease, str, bool], None] = _nobody
    state: list[SlotState] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    by_slot: dict[int, str] = field(default_factory=dict)
    ended: OrderedDict[str, str] = field(default_factory=OrderedDict)
    next_token: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a pool needs at least one slot, got {self.size}")
        self.state = ["down"] * self.size

    def idle(self) -> list[int]:
        """Slots ready to be lent, lowest first."""
        return [i for i, s in enumerate(self.state) if s == "idle"]

    def up(self, slot: int) -> None:
        """`slot` has booted, or turned out well, and may be lent."""
        if self.state[slot] not in ("down", "reserved"):
            raise ValueError(f"slot {slot} is {self.state[slot]}, neither down nor reserved")
        self.state[slot] = "idle"

    def reserve(self, slot: int) -> None:
        """Keep an idle slot from being lent while it is looked at; `up`, `down` or `grant` ends that."""
        if self.state[slot] != "idle":
            raise ValueError(f"slot {slot} is {self.state[slot]}, not idle")
        self.state[slot] = "reserved"

    def down(self, slot: int, why: str) -> Lease | None:
        """Take `slot` out of use; a lease on it is revoked and returned."""
        lease_id = self.by_slot.get(slot)
        lease = self._end(lease_id, f"was revoked: {why}", broken=True) if lease_id else None
        self.state[slot] = "down"
        return lease

    def grant(self, slot: int, holder: str, ttl_s: float, now: float) -> Lease:
        """Lend an idle or reserved `slot`. Raises ValueError when it is neither."""
        if self.state[slot] not in ("idle", "reserved"):
            raise ValueError(f"slot {slot} is {self.state[slot]}, not idle")
        lease = Lease(f"lease-{secrets.token_hex(8)}", self.next_token, slot, holder, ttl_s, now + ttl_s, now)
        self.next_token += 1
        self._enter(lease)
        return lease

    def restore(self, lease: Lease) -> None:
        """Take up a lease of an earlier server on a slot that is down. Raises ValueError."""
        if self.state[lease.slot] != "down" or lease.token >= self.next_token:
            raise ValueError(f"{lease.id} with token {lease.token} cannot be taken up on slot {lease.slot}")
        self._enter(lease)

    def get(self, lease_id: str, token: int, now: float) -> Lease:
        """The live lease, renewed to now + ttl. Raises UnknownLease, LeaseEnded or StaleToken."""
        lease = self.leases.get(lease_id)
        if lease is not None and lease.calls == 0 and now >= lease.deadline:
            self._expire(lease)
            lease = None
        if lease is None:
            if lease_id in self.ended:
                raise LeaseEnded(f"lease {lease_id} {self.ended[lease_id]}; allocate a new one")
            raise UnknownLease(f"lease {lease_id[:64]!r} is unknown; allocate one first")
        if token != lease.token:
            raise StaleToken(f"token {token} is not the token of lease {lease_id}")
        self.renew(lease, now)
        return lease

    def renew(self, lease: Lease, now: float) -> None:
        """A sign of life of its holder."""
        lease.deadline = now + lease.ttl_s

    def check(self, lease: Lease) -> None:
        """Whoever waited with a lease in hand looks again before it acts. Raises LeaseEnded."""
        if self.leases.get(lease.id) is not lease:
            raise LeaseEnded(f"lease {lease.id} {self.ended.get(lease.id, 'is over')}; allocate a new one")

    def begin(self, lease: Lease) -> None:
        """A call starts: the lease cannot expire until `finish`. Raises LeaseEnded: its slot may be another's now."""
        self.check(lease)
        lease.calls += 1

    def finish(self, lease: Lease, now: float) -> None:
        """A call has ended: the lease's time starts anew."""
        lease.calls -= 1
        lease.deadline = now + lease.ttl_s

    def release(self, lease: Lease, why: str = "was closed") -> None:
        """Give the slot back. A lease that has ended meanwhile is left alone."""
        if self.leases.get(lease.id) is lease:
            self._end(lease.id, why)

    def expire(self, now: float) -> list[Lease]:
        """End all leases whose time is over and that no call pins; returns them."""
        over = [x for x in self.leases.values() if x.calls == 0 and now >= x.deadline]
        for lease in over:
            self._expire(lease)
        return over

    def remember(self, lease_id: str, why: str) -> None:
        """A lease that ended before this table was made."""
        self.ended[lease_id] = why
        while len(self.ended) > REMEMBERED:
            self.ended.popitem(last=False)

    def _enter(self, lease: Lease) -> None:
        self.state[lease.slot] = "leased"
        self.leases[lease.id] = lease
        self.by_slot[lease.slot] = lease.id

    def _expire(self, lease: Lease) -> None:
        self._end(lease.id, f"expired after {lease.ttl_s:g} s without a heartbeat")

    def _end(self, lease_id: str, why: str, broken: bool = False) -> Lease:
        lease = self.leases.pop(lease_id)
        del self.by_slot[lease.slot]
        self.state[lease.slot] = "down" if broken or self.cleaned else "idle"
        self.remember(lease_id, why)
        self.on_end(lease, why, broken)
        return lease
