"""Races, clashes and storms that a pool must bear: each of these once leaked, acted for the wrong lease, or hung."""

import asyncio
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from guiderail.actions.types import Click, Type
from guiderail.envs.types import Env
from guiderail.pool.config import PoolConfig
from guiderail.pool.leases import BudgetExhausted, LeaseEnded, NoSlot, ProvisionFailed, RequestReused
from guiderail.pool.manager import Pool
from guiderail.pool.providers.base import LABEL_POOL, Misconfigured, ProviderError, Vm, VmSpec
from guiderail.pool.providers.noop import NoopEnv, NoopProvider
from guiderail.pool.providers.process import ProcessProvider
from guiderail.pool.store import Store
from guiderail.pool.wire import Reply
from guiderail.tasks.types import TaskSpec

TASK = TaskSpec("noop", "count", 1)


def run(test: Callable[[Pool], Awaitable[None]], provider: Any = None, slots: int = 1, **numbers: Any) -> None:
    async def main() -> None:
        pool = Pool(provider or NoopProvider(), PoolConfig(slots, 2.0, **{"ttl_s": 30.0, **numbers}))
        await pool.start()
        try:
            await asyncio.wait_for(test(pool), 60)
        finally:
            await pool.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.01)


async def reset(env: Env) -> Reply:
    await env.reset(TASK)
    return Reply(200, b"{}")


def act(action: Click | Type) -> Callable[[Env], Awaitable[Reply]]:
    async def do(env: Env) -> Reply:
        return Reply(200, orjson.dumps((await env.step(action)).raw_reward))

    return do


CLICK = act(Click(0.5, 0.5))


# -- a lease that is over ----------------------------------------------------------------------------------------------
def test_a_lease_that_ended_does_not_act_on_the_machine_of_the_next_one() -> None:
    async def test(pool: Pool) -> None:
        old = await pool.allocate("old", 30, 5, "")
        await pool.call(old, "r", 0, reset)
        await pool.close(old)
        new = await pool.allocate("new", 30, 5, "")
        assert new.slot == old.slot
        await pool.call(new, "r", 0, reset)
        with pytest.raises(LeaseEnded, match="was closed"):  # who waited for a call of `old` still has it in hand
            await pool.call(old, "a", 1, CLICK)
        assert (await pool.call(new, "a", 1, CLICK)).body == b"1.0"

    run(test)


def test_a_close_waits_for_calls_that_slip_in_before_it() -> None:
    """Else the next holder would share the screen with them."""

    async def test(pool: Pool) -> None:
        lease = await pool.allocate("a", 30, 5, "")
        await pool.call(lease, "r", 0, reset)
        first = asyncio.create_task(pool.call(lease, "1", 1, act(Type("!slow"))))
        await asyncio.sleep(0.05)

        async def slip_in() -> Reply:
            running = pool.calls_of(lease).running
            assert running is not None
            await asyncio.wait([running])
            return await pool.call(lease, "2", 2, act(Type("!slow")))

        second = asyncio.create_task(slip_in())
        await asyncio.sleep(0)
        closing = asyncio.create_task(pool.close(lease))
        next_one = await pool.allocate("b", 30, 5, "")
        assert pool.machines.slots[next_one.slot].env is not None and first.done() and second.done()
        assert not isinstance(second.exception(), AssertionError)
        await closing

    run(test)


# -- request ids -------------------------------------------------------------------------------------------------------
def test_a_request_id_of_somebody_else_does_not_give_their_machine() -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("a", 30, 5, "same")
        with pytest.raises(RequestReused, match="another allocation"):
            await pool.allocate("b", 30, 5, "same")
        with pytest.raises(RequestReused):
            await pool.allocate("a", 20, 5, "same")
        assert (await pool.allocate("a", 30, 5, "same")).id == lease.id

    run(test, slots=2)


# -- queues ------------------------------------------------------------------------------------------------------------
def test_who_gave_up_waiting_leaves_nothing_in_the_queue() -> None:
    async def test(pool: Pool) -> None:
        await pool.allocate("a", 30, 5, "")
        for _ in range(50):
            with pytest.raises(NoSlot):
                await pool.allocate("b", 30, 0.0, "")
        await asyncio.sleep(0.7)  # the watch has looked
        assert len(pool.queue.waiters) == 0

    run(test)


class Counted(OrderedDict[Any, Any]):
    """Counts how often somebody walks through it from one end to the other."""

    walks = 0

    def _walked(self, view: Any) -> Any:
        self.walks += 1
        return view

    def __iter__(self) -> Any:
        return self._walked(super().__iter__())

    def keys(self) -> Any:
        return self._walked(super().keys())

    def values(self) -> Any:
        return self._walked(super().values())

    def items(self) -> Any:
        return self._walked(super().items())


def test_ten_thousand_who_wait_do_not_slow_the_others() -> None:
    """Neither a newcomer nor a call looks through the queue; only the watch does, some times a second."""

    async def test(pool: Pool) -> None:
        pool.queue.waiters, requests = Counted(), Counted()
        pool.queue.requests = requests
        lease = await pool.allocate("a", 30, 5, "")
        await pool.call(lease, "r", 0, reset)
        waiting = [asyncio.create_task(pool.allocate(str(i), 30, 50, f"w-{i}")) for i in range(10_000)]
        await asyncio.sleep(0)
        assert len(pool.queue) == 10_000
        for i in range(100):
            await pool.call(lease, str(i), i, CLICK)
        assert pool.queue.waiters.walks + requests.walks < 50  # a queue counted for each newcomer: 10,000
        await pool.close(lease)
        assert (await waiting[0]).holder == "0"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(test)


# -- names -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["team/gui", "two words", "", "n" * 41, "ünï"])
def test_a_name_that_a_label_cannot_carry_is_refused(name: str) -> None:
    """Its machines would carry another label than the one that is swept."""
    with pytest.raises(ValueError, match="name = "):
        PoolConfig(1, name=name)


def test_the_longest_name_still_tells_machines_apart() -> None:
    names = [VmSpec(f"{PoolConfig(1, name='n' * 40).name}-1023-{x:08x}", "n" * 40).labels() for x in range(2)]
    assert names[0] != names[1]


def test_a_limit_that_no_lease_fits_into_is_refused() -> None:
    """Every machine would be replaced before it is lent, for ever."""
    with pytest.raises(ValueError, match=r"vm_ttl_s = 70.*more than"):
        PoolConfig(1, 20.0, 60.0, vm_ttl_s=70.0)


# -- money -------------------------------------------------------------------------------------------------------------
class Recreating(ProcessProvider):
    """Resets by making another machine, as the clouds do; one credit a second."""

    price_per_hour = 3600.0

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.resets = 0

    async def reset(self, vm: Vm) -> Vm:
        self.resets += 1
        return await super().reset(vm)


def test_a_spent_budget_ends_machines_instead_of_making_them_anew(tmp_path: Path) -> None:
    provider = Recreating(tmp_path)

    async def test(pool: Pool) -> None:
        lease = await pool.allocate("a", 30, 20, "")
        await until(lambda: bool(pool.machines.over_budget()))
        await pool.close(lease)
        await until(lambda: pool.machines.count("empty") == 2)
        assert provider.resets == 0 and await provider.list({LABEL_POOL: "pool"}) == []
        with pytest.raises(BudgetExhausted):
            await pool.allocate("b", 30, 20, "")

    run(test, provider, 2, budget=0.5)


# -- what must go on ---------------------------------------------------------------------------------------------------
def test_a_full_disk_for_a_moment_does_not_end_the_sweeper(tmp_path: Path) -> None:
    provider = ProcessProvider(tmp_path)

    async def test(pool: Pool) -> None:
        await until(lambda: len(pool.table.idle()) == 1)

        def full(*args: object, **kwargs: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        missing, found = pool.store.vms_missing, pool.store.vm_found
        pool.store.vms_missing = pool.store.vm_found = full  # type: ignore[method-assign]
        await asyncio.sleep(0.5)
        pool.store.vms_missing, pool.store.vm_found = missing, found  # type: ignore[method-assign]
        await provider.create(VmSpec("lost", "pool"))
        await until(lambda: pool.counts["swept"] == 1, 5)

    run(test, provider, sweep_s=0.1)


def test_a_fault_in_one_look_at_the_clock_does_not_end_the_watch() -> None:
    async def test(pool: Pool) -> None:
        real, pool.queue.prune = pool.queue.prune, lambda live: 1 / 0  # type: ignore[method-assign,assignment]
        await asyncio.sleep(0.7)
        pool.queue.prune = real  # type: ignore[method-assign]
        lease = await pool.allocate("a", 0.1, 5, "")
        await until(lambda: lease.id not in pool.table.leases, 3)

    run(test)


def test_a_fault_after_a_boot_does_not_forget_the_machine(tmp_path: Path) -> None:
    provider = ProcessProvider(tmp_path)

    async def main() -> None:
        pool = Pool(provider, PoolConfig(1, 2.0, 30.0))
        pumps = 0
        real = pool._pump

        def failing() -> None:
            nonlocal pumps
            pumps += 1
            if pumps == 1:
                raise sqlite3.OperationalError("disk I/O error")
            real()

        pool._pump = pool.machines.on_stuck = failing  # type: ignore[method-assign]
        await pool.start()
        await until(lambda: pumps >= 2)
        await asyncio.sleep(0.5)
        assert len(await provider.list({LABEL_POOL: "pool"})) == 1
        await pool.stop()
        assert await provider.list({}) == []

    asyncio.run(main())


def test_a_machine_that_boots_but_never_answers_is_not_replaced_in_a_storm() -> None:
    class Mute(NoopProvider):
        made = 0

        async def new_env(self) -> Env:
            self.made += 1
            return NoopEnv()

        async def ready(self, vm: Vm) -> bool:
            return False

        async def wait_ready(self, vm: Vm, timeout_s: float) -> Vm:
            return vm

    provider = Mute()

    async def test(pool: Pool) -> None:
        with pytest.raises(NoSlot):
            await pool.allocate("a", 30, 3.0, "")
        assert provider.made < 6  # in 3 s: at 0, 0.2, 0.6, 1.4, 3.0; without pauses it was thousands

    run(test, provider)


def test_a_provider_that_recovers_from_a_refusal_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that were renewed, a clock that was set: the pool must not stay empty until somebody restarts it."""
    monkeypatch.setattr("guiderail.pool.machines.REFUSED_S", 0.5)

    class Refusing(NoopProvider):
        refuses = True

        async def new_env(self) -> Env:
            if self.refuses:
                raise Misconfigured("the credentials have expired")
            return NoopEnv()

    provider = Refusing()

    async def test(pool: Pool) -> None:
        with pytest.raises(ProvisionFailed, match="expired"):
            await pool.allocate("a", 30, 5, "")
        provider.refuses = False
        with pytest.raises(ProvisionFailed):
            await pool.allocate("a", 30, 5, "")  # told at once for a while
        await asyncio.sleep(0.6)
        await pool.allocate("a", 30, 5, "")

    run(test, provider)


def test_a_stop_looks_once_more_for_what_could_not_be_ended_at_first(tmp_path: Path) -> None:
    """An API that showed a machine late: without a last look it would live until its hard limit."""

    class Late(ProcessProvider):
        hidden = True

        async def create(self, spec: VmSpec) -> Vm:
            await super().create(spec)
            raise ProviderError("500 from the API")

        async def list(self, labels: Any) -> list[Vm]:
            return [] if self.hidden and len(labels) == 1 and LABEL_POOL not in labels else await super().list(labels)

    provider = Late(tmp_path)

    async def test(pool: Pool) -> None:
        await until(lambda: pool.machines.trouble is not None)

    run(test, provider)
    assert [f for f in (tmp_path / "vms").iterdir() if f.is_dir()] == []


# -- the state file ----------------------------------------------------------------------------------------------------
def test_of_two_live_leases_of_a_machine_the_newer_is_taken_up(tmp_path: Path) -> None:
    """The end of the older could not be written (a full disk); the newer is the one that was lent."""

    async def main() -> None:
        path = str(tmp_path / "s.db")
        provider = ProcessProvider(tmp_path)
        pool = Pool(provider, PoolConfig(1, 2.0, 30.0, keep=True), Store(path))
        await pool.start()
        ids = []
        for holder in ("old", "new"):
            lease = await pool.allocate(holder, 30, 20, "")
            ids.append((lease.id, lease.token))
            if holder == "old":
                real, pool.store.lease_ended = pool.store.lease_ended, raising  # type: ignore[method-assign]
                await pool.close(lease)
                pool.store.lease_ended = real  # type: ignore[method-assign]
        await pool.stop()
        # the ids decide the order in which SQLite's index gives the rows: try the other order too
        for swap in (False, True):
            if swap:
                db = sqlite3.connect(path)
                db.execute("UPDATE leases SET id = 'lease-z' WHERE id = ?", (ids[0][0],))
                db.commit()
                db.close()
                ids[0] = ("lease-z", ids[0][1])
            pool = Pool(provider, PoolConfig(1, 2.0, 30.0, keep=True), Store(path))
            await pool.start()
            assert pool.lease(*ids[1]).holder == "new"
            with pytest.raises(LeaseEnded, match="fenced"):
                pool.lease(*ids[0])
            await pool.stop()
            if not swap:
                db = sqlite3.connect(path)
                db.execute("UPDATE leases SET ended = NULL WHERE id = ?", (ids[0][0],))
                db.commit()
                db.close()
        for vm in await provider.list({}):
            await provider.terminate(vm.id)

    asyncio.run(main())


def raising(*args: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_look_at_the_state_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    """`guiderail pool list` holds the lock for an instant to see whether a server does."""
    import fcntl
    import os
    import threading

    path = tmp_path / "s.db"
    Store(str(path)).close()
    lock = os.open(f"{path}.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(0.2, os.close, (lock,)).start()
    Store(str(path)).close()
