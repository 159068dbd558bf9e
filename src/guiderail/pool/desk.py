"""The lending desk: who gets which machine, and what happens to a machine between two holders.

Guarantees: first come, first served; a machine is asked whether it answers before it is lent; one that does not, or
whose lease ended badly, is replaced; a request id gets one lease; who waits is told at once when nothing will come.
Nothing here waits for a machine except who asked for one. All state changes happen between awaits of one event loop,
so there is no lock.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

from guiderail.pool.background import Background
from guiderail.pool.calls import Calls
from guiderail.pool.config import PoolConfig
from guiderail.pool.leases import (
    BudgetExhausted,
    Draining,
    Lease,
    LeaseError,
    LeaseTable,
    NoSlot,
    ProvisionFailed,
    Unwritten,
)
from guiderail.pool.machines import Machines
from guiderail.pool.providers.base import Fenced, Provider
from guiderail.pool.queue import Queue, Waiter
from guiderail.pool.store import Store

log = logging.getLogger("guiderail.pool")
UNHEARD_S = 15.0  # gui-rl's client asks again after 1 s, ours after 6 at most
COUNTS = (
    "steps",
    "resets",
    "infra_errors",
    "judge_errors",
    "rebuilds",
    "expired",
    "allocations",
    "swept",
    "recovered",
    "fenced",
)


class Desk:
    """Machines of `provider`, lent out by leases. What must outlive this process is in `store`."""

    def __init__(self, provider: Provider, config: PoolConfig, store: Store | None = None) -> None:
        self.provider, self.config, self.store = provider, config, store or Store()
        self.machines = Machines(provider, config, self.store, self._up, self._pump)
        self.table = LeaseTable(config.slots, provider.reset_between_leases, self._lease_ended)
        self.table.next_token = self.store.last_token + 1
        self.calls: dict[str, Calls] = {}
        self.queue = Queue()
        self.background = Background()
        self.draining = False
        self.counts = dict.fromkeys(COUNTS, 0)

    def drain(self) -> None:
        """Stop lending; who waits for a machine is told at once."""
        self.draining = True
        self.queue.refuse_all(Draining("the pool is shutting down"))

    async def allocate(self, holder: str, ttl_s: float, wait_s: float, request_id: str) -> Lease:
        """A lease on a machine that answers, first come first served; the same request id gets the same one.

        Raises NoSlot after `wait_s` seconds, BudgetExhausted or ProvisionFailed when none will come, Draining, and
        RequestReused when the request id came with another holder or time to live.
        """
        if self.draining:
            raise Draining("the pool is shutting down")
        waiter = self.queue.join(holder, ttl_s, request_id, self.table.leases)
        waiter.askers += 1
        self._pump()
        try:
            async with asyncio.timeout(wait_s):
                lease = await asyncio.shield(waiter.lease)
                self.table.renew(lease, time.monotonic())  # who asks again is alive
                return lease
        except TimeoutError:
            if waiter.askers == 1:  # nobody else waits for the same request
                self.queue.forget(waiter)
                if waiter.granted:
                    self.table.release(waiter.granted, "was not taken")
                    self._pump()
                waiter.lease.cancel()
            said = f"no slot became free within {wait_s:g} s ({self._shortage()})"
            raise NoSlot(said, self._boot_s()) from None
        finally:
            waiter.askers -= 1

    def unheard(self, lease: Lease) -> None:
        """Nobody was there any more to be told of `lease`: it is kept for a retry, but not for its whole time."""
        lease.deadline = min(lease.deadline, time.monotonic() + UNHEARD_S)

    def lease(self, lease_id: str, token: int) -> Lease:
        """The live lease, its time renewed. Raises LeaseError."""
        return self.table.get(lease_id, token, time.monotonic())

    def calls_of(self, lease: Lease) -> Calls:
        """The call book of a live lease."""
        return self.calls[lease.id]

    async def close(self, lease: Lease) -> None:
        """Give the slot back, after a call that may still run on it."""
        book = self.calls[lease.id]
        while book.running is not None:  # another may have begun before we were told that one ended
            await asyncio.wait([book.running])
        self.table.release(lease)
        self._pump()

    def _up(self, slot: int) -> None:
        self.table.up(slot)
        self._pump()

    def _quarantine(self, slot: int, why: str) -> None:
        """Take a slot out of use, its lease with it, and have its machine replaced: later, if the last was no good."""
        self.table.down(slot, why)
        if not self.draining:
            self.counts["rebuilds"] += 1
            self.machines.rebuild(slot, why)

    def _lease_ended(self, lease: Lease, why: str, broken: bool) -> None:
        try:
            self.store.lease_ended(lease.id, why)
        except sqlite3.Error as e:  # the next server will let it expire
            log.error("the end of %s could not be written: %s", lease.id, e)
        if broken or self.draining:
            return
        if self.table.cleaned:
            self.machines.clean(lease.slot)
        else:
            self.machines.slots[lease.slot].enter("up")  # idle from now on

    def _pump(self) -> None:
        """Have idle machines looked at for who waits; boot more where too few are coming; say so when none will."""
        waiting = len(self.queue) - self.table.state.count("reserved")
        for slot in self.table.idle()[: max(0, waiting)]:
            self._look_at(slot)
            waiting -= 1
        waiting -= self.machines.count("booting", "cleaning")
        if waiting <= 0 or self.draining:
            return
        never = self._never()
        if never is None:
            for s in self.machines.slots:
                if s.phase == "empty" and waiting > 0:
                    self.machines.boot(s.index)
                    waiting -= 1
        elif self.machines.count("empty") == self.config.slots:
            self.queue.refuse_all(never)

    def _look_at(self, slot: int) -> None:
        self.table.reserve(slot)
        self.background.spawn(self._hand_over(slot))

    async def _hand_over(self, slot: int) -> None:
        """The readiness gate: lend a reserved machine to who waits longest, if it answers."""
        if not await self.machines.ready(slot):
            self._quarantine(slot, "did not answer when it was looked at")
            return self._pump()
        waiter = self.queue.next()
        if waiter is None:
            return self.table.up(slot)
        try:
            waiter.lease.set_result(self._grant(slot, waiter))
        except sqlite3.Error as e:
            self._quarantine(slot, f"its lease could not be written: {e}")
            self.queue.forget(waiter)
            waiter.lease.set_exception(Unwritten(f"the pool cannot write its state: {e}"))

    def _grant(self, slot: int, waiter: Waiter) -> Lease:
        machine = self.machines.slots[slot]
        assert machine.vm is not None
        lease = self.table.grant(slot, waiter.holder, waiter.ttl_s, time.monotonic())
        name, request = machine.vm.name, waiter.request_id
        self.store.lease_granted(lease.id, lease.token, name, lease.holder, lease.ttl_s, request)
        if isinstance(machine.env, Fenced):
            machine.env.fence = lease.token
        self.calls[lease.id] = Calls(lease.id, self.store if self.provider.durable else None)
        self.counts["allocations"] += 1
        return lease

    def _never(self) -> LeaseError | None:
        """Why no machine will be made any more."""
        if said := self.machines.over_budget():
            return BudgetExhausted(said)
        refused = self.machines.refused()
        return ProvisionFailed(refused) if refused else None

    def _boot_s(self) -> float:
        """Limit of a boot while a machine is being made or cleaned and the last boot was no failure, else 0."""
        m = self.machines
        return m.config.boot_timeout_s if m.count("booting", "cleaning") and not m.trouble else 0.0

    def _shortage(self) -> str:
        """Why there is no machine, in words."""
        s, m = self.table.state, self.machines
        said = f"{s.count('leased')} of {len(s)} are lent, {m.count('booting')} are booting"
        said += f", {m.count('cleaning')} are being cleaned" if m.count("cleaning") else ""
        more = m.over_budget() or (f"the last boot failed: {m.trouble}" if m.trouble else "")
        return f"{said}; {more}" if more else said
