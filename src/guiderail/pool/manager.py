"""The pool itself: a lending desk that runs calls on the machines it lends. Knows nothing of HTTP.

Guarantees: a call with a request id is done at most once however often it is asked for, and every asker gets the same
reply; a call that crashes or outlives the call timeout is an infra_error and costs the lease, and its machine is
replaced; nothing waits for a machine that boots, is cleaned, resets or steps except who asked for that machine. Bad
input from a caller never costs it its lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from guiderail.envs.types import Env, InfraError, JudgeError
from guiderail.pool import ledger
from guiderail.pool.config import PoolConfig
from guiderail.pool.desk import Desk
from guiderail.pool.leases import Lease
from guiderail.pool.providers.base import LABEL_POOL, Provider
from guiderail.pool.recovery import recover
from guiderail.pool.store import Store
from guiderail.pool.sweeper import sweep
from guiderail.pool.wire import Reply, refusal

log = logging.getLogger("guiderail.pool")
LAST_LOOK_S = 60.0


class Pool(Desk):
    """A desk that runs calls and watches the clock."""

    def __init__(self, provider: Provider, config: PoolConfig, store: Store | None = None) -> None:
        super().__init__(provider, config, store)
        self.born = self.probed = time.monotonic()

    async def start(self) -> None:
        """Bring up the provider (its failure is ours), take up what an earlier server left, then boot in the back."""
        await self.provider.start()
        await recover(self)
        for slot in [s.index for s in self.machines.slots if s.phase == "empty"]:
            if self.config.slots - self.machines.count("empty") < self.config.ready:
                self.machines.boot(slot)
        self.background.spawn(self._watch())
        if self.provider.durable:
            self.background.spawn(self._sweep())

    async def stop(self) -> None:
        """Drain, let running calls end, end all machines (or leave them, see `PoolConfig.keep`) and the provider."""
        self.drain()
        running = [c.running for c in self.calls.values() if c.running is not None]
        if running:
            await asyncio.wait(running, timeout=self.config.call_timeout_s)
        keep = self.config.keep and self.provider.durable
        await self.background.cancel()
        if not keep:
            for lease in list(self.table.leases.values()):
                self.table.down(lease.slot, "the pool was stopped")
        await self.machines.stop(keep)
        if self.provider.durable:
            await self._last_look()
        await self.provider.stop()
        self.store.close()

    async def _last_look(self) -> None:
        """Nobody sweeps after us: end what an API showed too late, and say what is left."""
        staying = {s.vm.name for s in self.machines.slots if s.vm is not None}
        try:
            async with asyncio.timeout(LAST_LOOK_S):
                await sweep(self.provider, self.config.name, staying, self.store)
                left = [v.name for v in await self.provider.list({LABEL_POOL: self.config.name})]
        except Exception as e:
            left = [f"whatever there is, since it cannot be listed ({type(e).__name__}: {e})"]
        if left := [n for n in left if n not in staying]:
            log.error("left behind: %s; end it with `guiderail pool sweep --yes`", ", ".join(left))

    # -- calls --------------------------------------------------------------------------------------------------------
    async def call(
        self, lease: Lease, request_id: str, digest: int, act: Callable[[Env], Awaitable[Reply]], own_s: float = 0.0
    ) -> Reply:
        """Run `act` on the lease's screen once per `request_id`; `own_s`: seconds it may take beyond a call's, since it
        is told to wait for so long. Raises LeaseEnded, Busy, RequestReused."""
        self.table.check(lease)
        return await self.calls[lease.id].once(request_id, digest, lambda: self._run(lease, act, own_s))

    async def _run(self, lease: Lease, act: Callable[[Env], Awaitable[Reply]], own_s: float) -> Reply:
        self.table.begin(lease)
        env = self.machines.slots[lease.slot].env
        assert env is not None
        inner = asyncio.ensure_future(act(env))
        inner.add_done_callback(lambda t: t.cancelled() or t.exception())  # an abandoned call's error is no news
        limit = self.config.call_timeout_s + own_s
        try:
            done, _ = await asyncio.wait({inner}, timeout=limit)
            if not done:
                inner.cancel()
                return self._broken(lease, "timeout", f"the environment did not answer within {limit:g} s")
            reply = inner.result()
            self.machines.slots[lease.slot].failures = 0
            return reply
        except InfraError as e:
            return self._broken(lease, e.cause, str(e))
        except JudgeError as e:
            self.counts["judge_errors"] += 1
            return refusal(500, "judge_error", str(e))
        except ValueError as e:
            return refusal(422, getattr(e, "code", "bad_request"), str(e))
        except Exception as e:
            log.exception("slot %d: the environment raised", lease.slot)
            return self._broken(lease, "crash", f"{type(e).__name__}: {e}")
        finally:
            self.table.finish(lease, time.monotonic())

    def _broken(self, lease: Lease, cause: str, message: str) -> Reply:
        self.counts["infra_errors"] += 1
        log.warning("slot %d: %s: %s", lease.slot, cause, message)
        if self.table.leases.get(lease.id) is lease:
            self._quarantine(lease.slot, message)
        return refusal(504 if cause == "timeout" else 502, "infra_error", message, cause=cause)

    # -- by the clock -------------------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        """Every half second: end leases whose time is over and machines that died or lived too long or in vain."""
        while True:
            await asyncio.sleep(min(0.5, self.config.ttl_s / 4))
            try:
                self._look_around(time.monotonic())
            except Exception:  # leases must go on expiring whatever one look met
                log.exception("a look at leases and machines failed; the next comes soon")

    def _look_around(self, now: float) -> None:
        for lease in self.table.expire(now):
            self.counts["expired"] += 1
            log.warning("lease of %s on slot %d expired after %g s of silence", lease.holder, lease.slot, lease.ttl_s)
        for lease in list(self.table.leases.values()):
            if 0 < self.machines.slots[lease.slot].expires < now:
                self._quarantine(lease.slot, "its machine has come to its hard limit")
        self._reclaim(now)
        if now - self.probed >= min(self.config.probe_s, 60.0):
            self.probed = now
            for slot in self.table.idle():
                self._look_at(slot)
        live = self.table.leases
        self.calls = {k: v for k, v in self.calls.items() if k in live or v.running is not None}
        self.queue.prune(live)
        self._pump()

    def _reclaim(self, now: float) -> None:
        """End machines beyond `prewarm` that were idle for too long, and idle ones once the budget is spent."""
        limit, spent = self.config.idle_ttl_s, self.machines.over_budget()
        spare = self.config.slots - self.machines.count("empty", "ending") - self.config.ready
        for slot in self.table.idle()[::-1] if (limit or spent) and not len(self.queue) else []:
            if spent or (spare > 0 and now - self.machines.slots[slot].since >= limit):
                self.table.down(slot, "idle")
                self.machines.retire(slot, spent or f"idle for {limit:g} s")
                spare -= 1

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.config.sweep_s)
            try:
                self.counts["swept"] += await sweep(self.provider, self.config.name, self.machines.names, self.store)
            except Exception:  # orphans must go on being looked for
                log.exception("a look for orphans failed; the next comes in %g s", self.config.sweep_s)

    def status(self) -> dict[str, Any]:
        """Counts for people and monitors; no secrets."""
        state = self.table.state
        now = time.monotonic()
        leases = [
            {"slot": x.slot, "holder": x.holder, "age_s": round(now - x.granted, 1)} for x in self.table.leases.values()
        ]
        down = {p: n for p in ("booting", "cleaning", "ending", "empty") if (n := self.machines.count(p))}
        return {
            "slots": {
                "idle": state.count("idle") + state.count("reserved"),
                "leased": state.count("leased"),
                "down": state.count("down"),
            },
            "of_those_down": down,
            "trouble": str(self.machines.trouble or ""),
            "waiting": len(self.queue),
            "draining": self.draining,
            "uptime_s": round(now - self.born, 1),
            "boots": self.machines.boots,
            **self.counts,
            "leases": leases,
        }

    def costs(self) -> dict[str, Any]:
        """The ledger's totals."""
        return {**ledger.totals(self.store.db), "budget": self.config.budget}

    def costs_by_machine(self) -> list[dict[str, Any]]:
        """The ledger, a row for each machine ever asked for."""
        return ledger.machines(self.store.db)
