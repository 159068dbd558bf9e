"""Machines behind the slots: admission, faults, orphans, budget, reclaim, frozen and expired machines."""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from guiderail.envs.types import Env
from guiderail.pool.config import PoolConfig
from guiderail.pool.leases import BudgetExhausted, LeaseEnded, NoSlot, ProvisionFailed, Unwritten
from guiderail.pool.manager import Pool
from guiderail.pool.providers.base import LABEL_POOL, Misconfigured, ProviderError, QuotaExceeded, Vm, VmSpec
from guiderail.pool.providers.noop import NoopEnv, NoopProvider
from guiderail.pool.providers.process import ProcessProvider
from guiderail.pool.wire import Reply
from guiderail.tasks.types import TaskSpec


def run(
    test: Callable[[Pool], Awaitable[None]], provider: Any = None, slots: int = 2, ttl: float = 30.0, **numbers: Any
) -> None:
    async def main() -> None:
        pool = Pool(provider or NoopProvider(), PoolConfig(slots, 2.0, ttl, **numbers))
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
    await env.reset(TaskSpec("noop", "count", 1))
    return Reply(200, b"{}")


class Counting(NoopProvider):
    """Boots when told."""

    def __init__(self) -> None:
        super().__init__()
        self.booting, self.most, self.go = 0, 0, asyncio.Event()

    async def new_env(self) -> Env:
        self.booting += 1
        self.most = max(self.most, self.booting)
        await self.go.wait()
        self.booting -= 1
        return NoopEnv()


def test_no_more_boots_at_a_time_than_admitted_and_nobody_else_waits() -> None:
    provider = Counting()

    async def test(pool: Pool) -> None:
        await until(lambda: provider.booting == 3)
        assert pool.machines.count("booting") == 8
        with pytest.raises(NoSlot, match="8 are booting"):
            await pool.allocate("a", 30, 0.05, "")
        provider.go.set()
        await until(lambda: len(pool.table.idle()) == 8)
        assert provider.most == 3

    run(test, provider, 8, max_boots=3)


def test_machines_come_on_demand_and_go_when_idle() -> None:
    async def test(pool: Pool) -> None:
        await until(lambda: pool.machines.count("up") == 1)
        leases = await asyncio.gather(*(pool.allocate(str(i), 30, 5, "") for i in range(3)))
        assert pool.machines.count("up") == 3 and pool.machines.count("empty") == 1
        for lease in leases:
            await pool.close(lease)
        await until(lambda: pool.machines.count("empty") == 3)
        assert pool.machines.count("up") == 1  # never below prewarm
        assert [m["why"] for m in pool.costs_by_machine() if m["ended"]] == ["idle for 0.2 s"] * 2

    run(test, slots=4, prewarm=1, idle_ttl_s=0.2, ttl=1.0)


class Faulty(ProcessProvider):
    """An API that fails after the machine was made, then recovers."""

    def __init__(self, root: Path, faults: list[ProviderError]) -> None:
        super().__init__(root)
        self.faults, self.made = faults, 0

    async def create(self, spec: VmSpec) -> Vm:
        vm = await super().create(spec)
        self.made += 1
        if self.faults:
            raise self.faults.pop(0)
        return vm


def test_an_error_after_the_machine_was_made_leaves_no_orphan(tmp_path: Path) -> None:
    provider = Faulty(tmp_path, [ProviderError("500 from the API")] * 99)

    async def test(pool: Pool) -> None:
        await until(lambda: provider.made >= 2)
        with pytest.raises(NoSlot, match="the last boot failed: 500"):
            await pool.allocate("a", 30, 0.01, "")
        provider.faults.clear()
        await pool.allocate("a", 30, 20, "")
        assert [vm.name for vm in await provider.list({LABEL_POOL: "pool"})] == [pool.machines.slots[0].vm.name]  # type: ignore[union-attr]
        costs = pool.costs()
        assert (costs["machines"], costs["failed_boots"], costs["running"]) == (provider.made, provider.made - 1, 1)
        assert pool.machines.trouble is None

    run(test, provider, 1)
    assert list((tmp_path / "vms").iterdir()) == []


def test_quota_waits_longer_and_bad_credentials_end_the_wait(tmp_path: Path) -> None:
    async def quota(pool: Pool) -> None:
        await until(lambda: pool.machines.trouble is not None)
        with pytest.raises(NoSlot, match="no room in zone a"):
            await pool.allocate("a", 30, 0.5, "")

    run(quota, Faulty(tmp_path, [QuotaExceeded("no room in zone a")]), 1)

    async def refused(pool: Pool) -> None:
        with pytest.raises(ProvisionFailed, match="image ami-1 does not exist"):
            await pool.allocate("a", 30, 20, "")
        with pytest.raises(ProvisionFailed):
            await pool.allocate("a", 30, 20, "")  # and later ones at once

    run(refused, Faulty(tmp_path, [Misconfigured("image ami-1 does not exist")] * 9), 1)


def test_the_budget_stops_provisioning_in_words(tmp_path: Path) -> None:
    class Dear(ProcessProvider):
        price_per_hour = 3600.0  # one credit a second

    async def test(pool: Pool) -> None:
        lease = await pool.allocate("a", 30, 20, "")  # within the budget
        await until(lambda: pool.machines.spent() > 0.3)
        with pytest.raises(NoSlot, match=r"1 of 2 are lent.*budget of 0.3 credit is spent"):
            await pool.allocate("b", 30, 0.1, "")  # a's may come back, so it waits
        await pool.call(lease, "r", 0, reset)  # what runs goes on
        os.kill(int((tmp_path / "vms" / pool.machines.slots[lease.slot].vm.id / "pid").read_text().split()[0]), 9)  # type: ignore[union-attr]
        assert (await pool.call(lease, "r2", 0, reset)).status == 502
        with pytest.raises(BudgetExhausted, match="no machine is made any more"):
            await pool.allocate("b", 30, 20, "")
        costs = pool.costs()
        assert costs["by_owner"].keys() == {"run-7"} and costs["by_holder"]["a"]["leases"] == 1
        assert 0.3 < costs["cost"] == pytest.approx(costs["hours"] * 3600) and costs["running"] == 0

    run(test, Dear(tmp_path), 2, prewarm=0, budget=0.3, owner="run-7")


def test_a_frozen_machine_is_not_lent_and_a_frozen_lease_is_an_infra_error(tmp_path: Path) -> None:
    async def test(pool: Pool) -> None:
        def freeze(slot: int) -> str:
            vm = pool.machines.slots[slot].vm
            assert vm is not None
            os.kill(int((tmp_path / "vms" / vm.id / "pid").read_text().split()[0]), signal.SIGSTOP)
            return vm.name

        await until(lambda: pool.table.idle() == [0])
        frozen = freeze(0)
        lease = await pool.allocate("a", 30, 30, "")  # waits for its replacement
        assert pool.machines.slots[0].vm.name != frozen  # type: ignore[union-attr]
        freeze(0)
        reply = await pool.call(lease, "r", 0, reset)
        assert reply.status == 504 and b"infra_error" in reply.body
        with pytest.raises(LeaseEnded, match="revoked"):
            pool.lease(lease.id, lease.token)
        await pool.allocate("b", 30, 30, "")
        assert pool.counts["rebuilds"] == 2

    run(test, ProcessProvider(tmp_path), 1, probe_s=60.0)
    assert list((tmp_path / "vms").iterdir()) == []


def test_a_frozen_machine_is_found_while_nobody_asks(tmp_path: Path) -> None:
    async def test(pool: Pool) -> None:
        await until(lambda: pool.table.idle() == [0])
        vm = pool.machines.slots[0].vm
        assert vm is not None
        os.kill(int((tmp_path / "vms" / vm.id / "pid").read_text().split()[0]), signal.SIGSTOP)
        await until(lambda: pool.counts["rebuilds"] == 1 and pool.table.idle() == [0])

    run(test, ProcessProvider(tmp_path), 1, probe_s=0.1)


def test_a_machine_near_its_hard_limit_is_replaced_and_one_past_it_revoked(tmp_path: Path) -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("a", 60, 20, "")
        first = pool.machines.slots[0].vm
        await until(lambda: lease.id not in pool.table.leases)
        assert "hard limit" in pool.table.ended[lease.id]
        await pool.allocate("b", 1, 20, "")
        assert pool.machines.slots[0].vm is not first

    run(test, ProcessProvider(tmp_path), 1, ttl=1.0, vm_ttl_s=4.0)  # a lease needs ttl + call timeout = 3 s


def test_a_half_done_cleaning_costs_the_machine(tmp_path: Path) -> None:
    class HalfDone(ProcessProvider):
        async def reset(self, vm: Vm) -> Vm:
            raise ProviderError("the snapshot is gone")

    async def test(pool: Pool) -> None:
        lease = await pool.allocate("a", 30, 20, "")
        first = pool.machines.slots[0].vm
        await pool.close(lease)
        await pool.allocate("b", 30, 20, "")
        assert pool.machines.slots[0].vm != first

    run(test, HalfDone(tmp_path), 1)


def test_an_orphan_is_swept_while_the_pool_runs(tmp_path: Path) -> None:
    provider = ProcessProvider(tmp_path)

    async def test(pool: Pool) -> None:
        await provider.create(VmSpec("lost", "pool"))
        await until(lambda: pool.counts["swept"] == 1)
        names = [vm.name for vm in await provider.list({LABEL_POOL: "pool"})]
        assert "lost" not in names and len(names) == 2

    run(test, provider, 2, sweep_s=0.3)


def test_a_full_disk_does_nothing_and_says_so() -> None:
    async def test(pool: Pool) -> None:
        await until(lambda: len(pool.table.idle()) == 2)

        def full(*args: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        real, pool.store.lease_granted = pool.store.lease_granted, full  # type: ignore[method-assign]
        with pytest.raises(Unwritten, match="disk is full"):
            await pool.allocate("a", 30, 5, "")
        pool.store.lease_granted = real  # type: ignore[method-assign]
        await pool.allocate("a", 30, 5, "")
        assert len(pool.table.leases) == 1

    run(test)


def test_config_says_what_cannot_work() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"slots": 0}, "at least one slot"),
        ({"slots": 2, "prewarm": 3}, "prewarm = 3"),
        ({"slots": 1, "ttl_s": 0}, "ttl_s = 0"),
        ({"slots": 1, "budget": -1}, "budget = -1"),
    ]
    for wrong, said in cases:
        with pytest.raises(ValueError, match=said):
            PoolConfig(**wrong)


def test_a_clock_that_is_set_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("a", 60, 20, "")
        vm, real = pool.machines.slots[0].vm, time.time
        for jump in (10**7, -(10**7)):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            await asyncio.sleep(0.7)  # the watch has looked
            assert pool.lease(lease.id, lease.token) is lease
        await pool.close(lease)
        await pool.allocate("b", 60, 20, "")
        assert pool.machines.slots[0].vm == vm
        monkeypatch.undo()

    run(test, ProcessProvider(tmp_path), 1, vm_ttl_s=3600.0)
