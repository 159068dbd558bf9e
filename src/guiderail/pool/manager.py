"""The pool itself: boots slots, lends them, runs calls on them, rebuilds what breaks. Knows nothing of HTTP.

Guarantees: a call with a request id is done at most once however often it is asked for, and every asker gets the same
reply; a call that crashes or outlives the call timeout is an infra_error, its slot is quarantined (the lease revoked)
and rebuilt in the background; nothing waits for a slot that boots, resets or steps except who asked for that slot.
All state changes happen between awaits of one event loop, so there is no lock. Bad input from a caller never costs it
its lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from guiderail.envs.types import Env, InfraError
from guiderail.pool.leases import Busy, Draining, Lease, LeaseTable, NoSlot, RequestReused
from guiderail.pool.providers.local import LocalProvider
from guiderail.pool.wire import Reply, refusal

log = logging.getLogger("guiderail.pool")
KEPT_REPLIES = 8
BOOT_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 10.0


@dataclass
class Calls:
    """The calls of one lease: every request id ever seen (with a digest of what was asked), the last replies kept."""

    seen: dict[str, int] = field(default_factory=dict)
    replies: dict[str, asyncio.Task[Reply]] = field(default_factory=dict)
    running: asyncio.Task[Reply] | None = None
    started: bool = False  # a reset succeeded
    over: bool = False  # the environment ended the episode


@dataclass
class Waiter:
    """Who waits for a slot; `askers` counts the connections that wait for this one (a retry joins the first)."""

    lease: asyncio.Future[Lease]
    holder: str
    ttl_s: float
    askers: int = 0

    def result(self) -> Lease:
        """The lease granted."""
        return self.lease.result()


class Pool:
    """`slots` environments of `provider`, lent out by leases."""

    def __init__(self, provider: LocalProvider, slots: int, call_timeout_s: float, ttl_s: float) -> None:
        self.provider, self.call_timeout_s, self.ttl_s = provider, call_timeout_s, ttl_s
        self.table = LeaseTable(slots)
        self.envs: list[Env | None] = [None] * slots
        self.calls: dict[str, Calls] = {}
        self.allocations: dict[str, Waiter] = {}
        self.waiters: deque[Waiter] = deque()
        self.background: set[asyncio.Task[None]] = set()
        self.draining = False
        self.counts = {"steps": 0, "resets": 0, "infra_errors": 0, "rebuilds": 0, "expired": 0, "allocations": 0}
        self.born = time.monotonic()

    async def start(self) -> None:
        """Bring up the provider (its failure is ours), then boot all slots in the background."""
        await self.provider.start()
        for slot in range(self.table.size):
            self._spawn(self._build(slot))
        self._spawn(self._watch())

    def drain(self) -> None:
        """Stop lending; who waits for a slot is told at once."""
        self.draining = True
        while self.waiters:
            waiter = self.waiters.popleft().lease
            if not waiter.done():
                waiter.set_exception(Draining("the pool is shutting down"))

    async def stop(self) -> None:
        """Drain, let running calls end, close all environments and the provider."""
        self.drain()
        running = [c.running for c in self.calls.values() if c.running is not None]
        if running:
            await asyncio.wait(running, timeout=self.call_timeout_s)
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        await asyncio.gather(*(self._close(env) for env in self.envs if env is not None))
        await self.provider.stop()

    async def allocate(self, holder: str, ttl_s: float, wait_s: float, request_id: str) -> Lease:
        """A lease on a healthy slot, first come first served; the same request id gets the same one.

        Raises NoSlot after `wait_s` seconds, Draining when the server shuts down.
        """
        if self.draining:
            raise Draining("the pool is shutting down")
        waiter = self.allocations.get(request_id) if request_id else None
        if waiter is None or (waiter.lease.done() and waiter.result().id not in self.table.leases):
            waiter = Waiter(asyncio.get_running_loop().create_future(), holder, ttl_s)
            self.waiters.append(waiter)
            if request_id:
                self.allocations[request_id] = waiter
            self._pump()
        waiter.askers += 1
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(waiter.lease)
        except TimeoutError:
            if waiter.askers == 1:  # nobody else waits for the same request
                self.allocations.pop(request_id, None)
                if waiter.lease.done():
                    self.table.release(waiter.result())
                    self._pump()
                waiter.lease.cancel()
            s = self.table.state
            raise NoSlot(
                f"no slot became free within {wait_s:g} s "
                f"({s.count('leased')} of {len(s)} are lent, {s.count('down')} are booting)"
            ) from None
        finally:
            waiter.askers -= 1

    def lease(self, lease_id: str, token: int) -> Lease:
        """The live lease, its time renewed. Raises LeaseError."""
        return self.table.get(lease_id, token, time.monotonic())

    def calls_of(self, lease: Lease) -> Calls:
        """The call book of a live lease."""
        return self.calls[lease.id]

    async def call(self, lease: Lease, request_id: str, digest: int, act: Callable[[Env], Awaitable[Reply]]) -> Reply:
        """Run `act` on the lease's environment once per `request_id`. Raises Busy, RequestReused."""
        calls = self.calls[lease.id]
        if request_id in calls.seen:
            task = calls.replies.get(request_id)
            if calls.seen[request_id] != digest:
                raise RequestReused(f"request id {request_id!r} was used for another request on this lease")
            if task is None:
                raise RequestReused(f"request {request_id!r} was done, but its reply is no longer kept")
            return await asyncio.shield(task)
        if calls.running is not None:
            raise Busy("another call is running on this lease; one screen takes one call at a time")
        task = asyncio.create_task(self._run(lease, act))
        calls.running, calls.seen[request_id], calls.replies[request_id] = task, digest, task
        while len(calls.replies) > KEPT_REPLIES:
            del calls.replies[next(iter(calls.replies))]
        return await asyncio.shield(task)  # a caller that hangs up does not stop the call

    async def close(self, lease: Lease) -> None:
        """Give the slot back, after a call that may still run on it."""
        running = self.calls[lease.id].running
        if running is not None:
            await asyncio.wait([running])
        self.table.release(lease)
        self._pump()

    async def _run(self, lease: Lease, act: Callable[[Env], Awaitable[Reply]]) -> Reply:
        env = self.envs[lease.slot]
        assert env is not None
        self.table.begin(lease)
        inner = asyncio.ensure_future(act(env))
        inner.add_done_callback(lambda t: t.cancelled() or t.exception())  # an abandoned call's error is no news
        try:
            done, _ = await asyncio.wait({inner}, timeout=self.call_timeout_s)
            if not done:
                inner.cancel()
                return self._broken(
                    lease, "timeout", f"the environment did not answer within {self.call_timeout_s:g} s"
                )
            return inner.result()
        except InfraError as e:
            return self._broken(lease, e.cause, str(e))
        except ValueError as e:
            return refusal(422, "bad_request", str(e))
        except Exception as e:
            log.exception("slot %d: the environment raised", lease.slot)
            return self._broken(lease, "crash", f"{type(e).__name__}: {e}")
        finally:
            self.table.finish(lease, time.monotonic())
            self.calls[lease.id].running = None

    def _broken(self, lease: Lease, cause: str, message: str) -> Reply:
        self.counts["infra_errors"] += 1
        log.warning("slot %d: %s: %s", lease.slot, cause, message)
        self._quarantine(lease.slot, message)
        return refusal(504 if cause == "timeout" else 502, "infra_error", message, cause=cause)

    def _quarantine(self, slot: int, why: str) -> None:
        self.table.down(slot, why)
        if not self.draining:
            self.counts["rebuilds"] += 1
            self._spawn(self._build(slot))

    async def _build(self, slot: int) -> None:
        old, self.envs[slot] = self.envs[slot], None
        if old is not None:
            await self._close(old)
        pause = 0.2
        while True:
            try:
                async with asyncio.timeout(BOOT_TIMEOUT_S):
                    self.envs[slot] = await self.provider.new_env()
                break
            except Exception as e:  # whatever it is, the slot stays down and is tried again
                log.warning("slot %d: cannot boot (%s: %s); next try in %.1f s", slot, type(e).__name__, e, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
        self.table.up(slot)
        self._pump()

    async def _close(self, env: Env) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await env.close()
        except Exception as e:
            log.warning("an environment did not close: %s: %s", type(e).__name__, e)

    def _pump(self) -> None:
        """Hand idle slots to who waits; an idle slot found dead is rebuilt instead."""
        while self.waiters and (idle := self.table.idle()):
            slot = idle[0]
            env = self.envs[slot]
            if env is None or not self.provider.healthy(env):
                self._quarantine(slot, "found dead while idle")
                continue
            waiter = self.waiters.popleft()
            if not waiter.lease.done():
                lease = self.table.grant(slot, waiter.holder, waiter.ttl_s, time.monotonic())
                self.calls[lease.id] = Calls()
                self.counts["allocations"] += 1
                waiter.lease.set_result(lease)

    async def _watch(self) -> None:
        """Every half second: end leases whose time is over, rebuild idle slots that died, forget what ended."""
        while True:
            await asyncio.sleep(min(0.5, self.ttl_s / 4))
            for lease in self.table.expire(time.monotonic()):
                self.counts["expired"] += 1
                log.warning(
                    "lease of %s on slot %d expired after %g s of silence", lease.holder, lease.slot, lease.ttl_s
                )
            for slot in self.table.idle():
                env = self.envs[slot]
                if env is None or not self.provider.healthy(env):
                    self._quarantine(slot, "found dead while idle")
            live = self.table.leases
            self.calls = {k: v for k, v in self.calls.items() if k in live or v.running is not None}
            self.allocations = {
                k: v for k, v in self.allocations.items() if not v.lease.done() or v.result().id in live
            }
            self._pump()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work of the pool failed", exc_info=task.exception())

    def status(self) -> dict[str, object]:
        """Counts for people and monitors; no secrets."""
        state = self.table.state
        now = time.monotonic()
        leases = [
            {"slot": x.slot, "holder": x.holder, "age_s": round(now - x.granted, 1)} for x in self.table.leases.values()
        ]
        return {
            "slots": {s: state.count(s) for s in ("idle", "leased", "down")},
            "waiting": sum(not w.lease.done() for w in self.waiters),
            "draining": self.draining,
            "uptime_s": round(now - self.born, 1),
            **self.counts,
            "leases": leases,
        }
