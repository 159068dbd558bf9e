"""The machines behind the slots: made, cleaned, replaced, ended. Knows nothing of leases.

Guarantees: a slot has one machine at most, and one task at most works on it; at most `max_boots` machines boot or are
made anew at a time; whatever a failed or cancelled boot may have left at the provider is ended by its name before the
next try; a machine that could not be ended is left to the sweeper and stays in the ledger as running.
Nobody waits here for anybody else's machine, and no lock is held while one boots, is cleaned or ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from guiderail.envs.types import Env
from guiderail.pool import ledger
from guiderail.pool.background import Background
from guiderail.pool.config import PoolConfig
from guiderail.pool.providers.base import LABEL_NAME, Misconfigured, Provider, ProviderError, QuotaExceeded, Vm, VmSpec
from guiderail.pool.store import Store

log = logging.getLogger("guiderail.pool")
CREATE_TIMEOUT_S = 60.0  # what a provider may take to ask for a machine
RESET_TIMEOUT_S = 120.0  # what a reset may take beside the boot that it may be
CLOSE_TIMEOUT_S = 10.0
GATE_TIMEOUT_S = 5.0
MAX_PAUSE_S = 10.0
QUOTA_PAUSE_S = 30.0
REFUSED_S = 60.0  # so long a refusal (credentials, image) is told to everybody before it is tried again
END_TRIES = 3

Phase = Literal["empty", "booting", "cleaning", "up", "ending"]


@dataclass
class Slot:
    """A place for a machine. `since`: when its phase began; `expires`: its hard limit, 0 = none.

    Both are monotonic, so that a clock that is set does not end machines. `failures`: machines replaced since one
    last did what it was asked.
    """

    index: int
    phase: Phase = "empty"
    since: float = 0.0
    vm: Vm | None = None
    env: Env | None = None
    expires: float = 0.0
    failures: int = 0

    def enter(self, phase: Phase) -> None:
        """Change the phase."""
        self.phase, self.since = phase, time.monotonic()


class Machines:
    """`config.slots` slots filled from `provider`. `on_up(slot)`: a machine is ready and clean; `on_stuck()`: one that
    was asked for will not come (see `refusal`)."""

    def __init__(
        self,
        provider: Provider,
        config: PoolConfig,
        store: Store,
        on_up: Callable[[int], None],
        on_stuck: Callable[[], None],
    ) -> None:
        self.provider, self.config, self.store, self.on_up, self.on_stuck = provider, config, store, on_up, on_stuck
        self.slots = [Slot(i) for i in range(config.slots)]
        self.names: set[str] = set()  # machines that are ours, those being made included
        self.admission = asyncio.Semaphore(config.max_boots)
        self.background = Background()
        self.trouble: ProviderError | None = None  # why the last boot failed, until one works
        self.refused_at = 0.0
        self.boots = 0

    # -- what can be asked for ----------------------------------------------------------------------------------------
    def boot(self, index: int) -> None:
        """Fill an empty slot, in the background."""
        slot = self.slots[index]
        assert slot.phase == "empty", slot
        slot.enter("booting")
        self.background.spawn(self._boot(slot))

    def rebuild(self, index: int, why: str) -> None:
        """Replace the machine of a slot that is up, in the background; with growing pauses when none is any good."""
        slot = self.slots[index]
        assert slot.phase == "up", slot
        slot.enter("booting")
        pause = min(MAX_PAUSE_S, 0.1 * 2**slot.failures) if slot.failures else 0.0
        slot.failures = min(slot.failures + 1, 10)
        self.background.spawn(self._rebuild(slot, why, pause))

    def clean(self, index: int) -> None:
        """Make the machine of a slot that is up as new, in the background."""
        slot = self.slots[index]
        assert slot.phase == "up", slot
        slot.enter("cleaning")
        self.background.spawn(self._clean(slot))

    def retire(self, index: int, why: str) -> None:
        """End the machine of a slot that is up and leave the slot empty, in the background."""
        slot = self.slots[index]
        assert slot.phase == "up", slot
        slot.enter("ending")
        self.background.spawn(self._retire(slot, why))

    def adopt(self, index: int, vm: Vm, env: Env, expires: float) -> None:
        """Take up a machine that an earlier server made; `expires`: unix seconds, 0 = none."""
        slot = self.slots[index]
        slot.vm, slot.env = vm, env
        slot.expires = time.monotonic() + expires - time.time() if expires else 0.0
        slot.enter("up")

    async def ready(self, index: int) -> bool:
        """The readiness gate: whether the slot's machine answers now and has time left for another lease."""
        slot = self.slots[index]
        if slot.vm is None or (slot.expires and time.monotonic() + self.config.lease_room_s > slot.expires):
            return False
        try:
            async with asyncio.timeout(GATE_TIMEOUT_S):
                return await self.provider.ready(slot.vm)
        except Exception as e:
            log.warning("slot %d: its machine cannot be asked (%s: %s)", index, type(e).__name__, e)
            return False

    def count(self, *phases: Phase) -> int:
        """Slots in one of `phases`."""
        return sum(s.phase in phases for s in self.slots)

    def spent(self) -> float:
        """What all machines of this state file have cost so far."""
        return ledger.spent(self.store.db)

    def over_budget(self) -> str:
        """A sentence when no machine may be made any more, else ""."""
        limit = self.config.budget
        if not limit or (spent := self.spent()) < limit:
            return ""
        return f"the budget of {limit:g} {self.provider.currency} is spent ({spent:.2f}): no machine is made any more"

    def refused(self) -> str:
        """Why the provider will make no machine whatever is tried, as long as that is news; else ""."""
        fresh = isinstance(self.trouble, Misconfigured) and time.monotonic() - self.refused_at < REFUSED_S
        return str(self.trouble) if fresh else ""

    async def stop(self, keep: bool) -> None:
        """End all work; with `keep` leave machines that are up, else end them."""
        await self.background.cancel()
        up = [s for s in self.slots if s.vm is not None]
        if keep:
            await asyncio.gather(*(self._close(s) for s in up))
        else:
            await asyncio.gather(*(self._end(s, "the pool was stopped") for s in up))
        staying = {s.vm.name for s in self.slots if s.vm is not None}
        await asyncio.gather(*(self._end_name(n, "the pool was stopped") for n in self.names - staying))

    # -- work on one slot ---------------------------------------------------------------------------------------------
    async def _boot(self, slot: Slot) -> None:
        pause = 0.2
        while True:
            try:
                async with self.admission:
                    if said := self.over_budget():
                        log.error("slot %d stays empty: %s", slot.index, said)
                        break
                    await self._make(slot)
            except Misconfigured as e:
                log.error("slot %d stays empty: %s", slot.index, e)
                self.trouble, self.refused_at = e, time.monotonic()
                break
            except Exception as e:  # whatever it is, the slot stays down and is tried again
                pause = max(pause, QUOTA_PAUSE_S) if isinstance(e, QuotaExceeded) else pause
                log.warning("slot %d: cannot boot (%s: %s); next try in %.1f s", slot.index, type(e).__name__, e, pause)
                self.trouble = e if isinstance(e, ProviderError) else ProviderError(f"{type(e).__name__}: {e}")
                await asyncio.sleep(pause)
                pause = min(pause * 2, max(MAX_PAUSE_S, pause))
            else:  # what goes wrong from here on is no fault of the machine
                self.trouble = None
                slot.enter("up")
                return self.on_up(slot.index)
        slot.enter("empty")
        self.on_stuck()

    async def _make(self, slot: Slot) -> None:
        """One try to fill `slot`. Leaves nothing behind when it raises, as far as the provider lets us know."""
        c, p = self.config, self.provider
        name = f"{c.name}-{slot.index}-{secrets.token_hex(4)}"
        started = time.monotonic()
        expires = time.time() + c.vm_ttl_s if c.vm_ttl_s else 0.0
        self.store.vm_asked(name, p.name, c.owner, slot.index, p.price_per_hour, p.currency, expires)
        self.names.add(name)
        try:
            async with asyncio.timeout(c.boot_timeout_s + CREATE_TIMEOUT_S):  # wait_ready says better what was missing
                vm = await p.create(VmSpec(name, c.name, c.owner, expires))
                self.store.vm_made(name, vm.id, vm.price_per_hour)
                vm = await p.wait_ready(vm, c.boot_timeout_s)
                env = await p.connect(vm)
                self.store.vm_state(name, "clean")
        except BaseException as e:
            await self._end_name(name, f"boot failed: {type(e).__name__}: {e}")
            raise
        self.boots += 1
        slot.vm, slot.env, slot.expires = vm, env, started + c.vm_ttl_s if c.vm_ttl_s else 0.0
        up, took = self.count("up") + 1, time.monotonic() - started
        log.info("slot %d: machine %s is up after %.1f s; %d of %d are", slot.index, vm.name, took, up, c.slots)

    async def _rebuild(self, slot: Slot, why: str, pause: float = 0.0) -> None:
        await self._end(slot, why)
        await asyncio.sleep(pause)
        await self._boot(slot)

    async def _clean(self, slot: Slot) -> None:
        vm = slot.vm
        assert vm is not None
        if said := self.over_budget():  # made as new may mean made anew
            slot.enter("ending")
            await self._retire(slot, said)
            return self.on_stuck()
        try:
            await self._close(slot)
            async with self.admission, asyncio.timeout(self.config.boot_timeout_s + RESET_TIMEOUT_S):
                slot.vm = vm = await self.provider.reset(vm)
                self.store.vm_made(vm.name, vm.id, vm.price_per_hour)
                slot.env = await self.provider.connect(vm)
                self.store.vm_state(vm.name, "clean")
        except Exception as e:
            log.warning("slot %d: cannot be cleaned (%s: %s); it is replaced", slot.index, type(e).__name__, e)
            slot.enter("booting")
            return await self._rebuild(slot, f"could not be cleaned: {e}")
        slot.enter("up")
        self.on_up(slot.index)

    async def _retire(self, slot: Slot, why: str) -> None:
        await self._end(slot, why)
        slot.enter("empty")

    async def _close(self, slot: Slot) -> None:
        env, slot.env = slot.env, None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if env is not None:
                    await env.close()
        except Exception as e:
            log.warning("slot %d: its screen did not close: %s: %s", slot.index, type(e).__name__, e)

    async def _end(self, slot: Slot, why: str) -> None:
        """End the slot's machine, by name: what a failed reset left half made carries it too."""
        vm, slot.vm = slot.vm, None
        await self._close(slot)
        if vm is not None:
            await self._end_name(vm.name, why, vm.id)

    async def _end_name(self, name: str, why: str, vm_id: str = "") -> None:
        """End whatever carries `name`, three tries; then it is the sweeper's."""
        for attempt in range(END_TRIES):
            try:
                async with asyncio.timeout(60.0):
                    if vm_id:
                        await self.provider.terminate(vm_id)
                    for left in await self.provider.list({LABEL_NAME: name}):
                        await self.provider.terminate(left.id)
                self.store.vm_ended(name, why)
                break
            except Exception as e:
                log.warning("machine %s cannot be ended (%s: %s), try %d", name, type(e).__name__, e, attempt + 1)
                await asyncio.sleep(0.5 * 2**attempt)
        self.names.discard(name)
