"""A pool that dies and comes back: machines are processes that live on; the journal tells what was really done."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from guiderail.actions.types import Type
from guiderail.envs.types import Env
from guiderail.pool.config import PoolConfig
from guiderail.pool.leases import LeaseEnded, RequestReused, StaleToken
from guiderail.pool.manager import Pool
from guiderail.pool.providers.base import LABEL_POOL, VmSpec
from guiderail.pool.providers.noop import NoopProvider
from guiderail.pool.providers.process import ProcessProvider
from guiderail.pool.store import Store, StoreTaken
from guiderail.pool.wire import Reply
from guiderail.tasks.types import TaskSpec

TASK = TaskSpec("noop", "count", 1)


class World:
    """A folder that is the cloud, and a state file. `open()` starts a server's pool, `die()` is its kill -9."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pool: Pool | None = None

    async def open(self, slots: int = 2, **numbers: float) -> Pool:
        config = PoolConfig(slots, 5.0, 30.0, "mine", "run-1", **numbers)  # type: ignore[arg-type]
        self.pool = Pool(ProcessProvider(self.root), config, Store(str(self.root / "state.db")))
        await self.pool.start()
        return self.pool

    async def die(self) -> None:
        """All tasks stop at once, connections and the file are dropped; nothing is told to anybody."""
        pool, self.pool = self.pool, None
        assert pool is not None
        tasks = [*pool.background.tasks, *pool.machines.background.tasks]
        pool.machines._end_name = lambda *a, **k: asyncio.sleep(0)  # type: ignore[method-assign,assignment]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in pool.machines.slots:
            if slot.env is not None:
                await slot.env.close()
        pool.store.close()

    def done(self) -> list[str]:
        """Actions really applied, by all machines, in order."""
        lines = [json.loads(line) for line in (self.root / "journal").read_text().splitlines()]
        return [json.loads(what)["text"] for _, _, _, kind, what in lines if kind == "step"]

    def pids(self) -> dict[str, int]:
        return {f.parent.name: int(f.read_text().split()[0]) for f in self.root.glob("vms/*/pid")}


@contextlib.asynccontextmanager
async def world(root: Path) -> AsyncIterator[World]:
    w = World(root)
    try:
        yield w
    finally:
        if w.pool is not None:
            await w.pool.stop()
        provider = ProcessProvider(root)
        for vm in await provider.list({}):
            await provider.terminate(vm.id)


def run(tmp_path: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with world(tmp_path) as w:
            await asyncio.wait_for(test(w), 120)

    asyncio.run(main())


async def reset(env: Env) -> Reply:
    await env.reset(TASK)
    return Reply(200, b"{}")


def typing(text: str) -> Callable[[Env], Awaitable[Reply]]:
    async def act(env: Env) -> Reply:
        return Reply(200, orjson.dumps((await env.step(Type(text))).raw_reward))

    return act


def test_a_lease_lives_on_and_nothing_is_done_twice(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        pool = await w.open()
        lease = await pool.allocate("me", 30, 20, "alloc-1")
        idle = await pool.allocate("other", 30, 20, "")
        await pool.call(lease, "r", 1, reset)
        first = await pool.call(lease, "a", 2, typing("one"))
        await pool.close(idle)
        pids = w.pids()
        await w.die()

        pool = await w.open()
        assert w.pids() == pids and pool.counts["recovered"] == 1
        again = pool.lease(lease.id, lease.token)
        assert (again.slot, again.holder, again.ttl_s) in {(0, "me", 30), (1, "me", 30)}
        assert (await pool.allocate("me", 30, 1, "alloc-1")).id == lease.id  # a retry of the first request
        assert await pool.call(again, "a", 2, typing("one")) == first  # the reply was lost: sent again, not done again
        with pytest.raises(RequestReused, match="no longer kept"):
            await pool.call(again, "r", 1, reset)
        with pytest.raises(RequestReused, match="another request"):
            await pool.call(again, "a", 3, typing("three"))
        assert (await pool.call(again, "b", 4, typing("two"))).body == b"2.0"
        assert w.done() == ["one", "two"]
        with pytest.raises(StaleToken):
            pool.lease(lease.id, lease.token - 1)
        with pytest.raises(LeaseEnded, match="closed"):
            pool.lease(idle.id, idle.token)
        fresh = await pool.allocate("new", 30, 20, "")
        assert fresh.token > max(lease.token, idle.token)

    run(tmp_path, test)


def test_a_call_that_was_running_fences_the_lease(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        pool = await w.open(1)
        lease = await pool.allocate("me", 30, 20, "")
        await pool.call(lease, "r", 1, reset)
        task = asyncio.create_task(pool.call(lease, "a", 2, typing("!slow one")))
        while "!slow one" not in w.done():
            await asyncio.sleep(0.01)
        before = w.pids()
        pool.store.call_done = lambda *a, **k: None  # type: ignore[method-assign]  # it never came to that
        await w.die()
        task.cancel()

        pool = await w.open(1)
        with pytest.raises(LeaseEnded, match=r"fenced.*whether it acted is not known"):
            pool.lease(lease.id, lease.token)
        fresh = await pool.allocate("next", 30, 20, "")
        assert w.pids().keys().isdisjoint(before)  # nobody gets the half-done machine
        await pool.call(fresh, "r", 1, reset)
        assert pool.counts["fenced"] == 1

    run(tmp_path, test)


def test_what_died_meanwhile_is_fenced_and_what_is_nobodys_is_ended(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        pool = await w.open(2)
        leases = [await pool.allocate(h, 30, 20, "") for h in "ab"]
        names = {x.slot: pool.machines.slots[x.slot].vm.name for x in leases}  # type: ignore[union-attr]
        await w.die()
        os.kill(w.pids()[names[leases[0].slot]], signal.SIGKILL)
        cloud = ProcessProvider(w.root)
        await cloud.create(VmSpec("orphan", "mine"))  # made by a server that died before it wrote so
        await cloud.create(VmSpec("foreign", "theirs"))

        pool = await w.open(2)
        with pytest.raises(LeaseEnded, match="fenced"):
            pool.lease(leases[0].id, leases[0].token)
        assert pool.lease(leases[1].id, leases[1].token).holder == "b"
        assert [vm.name for vm in await cloud.list({LABEL_POOL: "theirs"})] == ["foreign"]
        left = {vm.name for vm in await cloud.list({LABEL_POOL: "mine"})}
        assert "orphan" not in left and names[leases[0].slot] not in left and names[leases[1].slot] in left
        ledger = {m["name"]: m for m in pool.costs_by_machine()}
        assert ledger["orphan"]["ended"] is not None and ledger[names[leases[0].slot]]["ended"] is not None

    run(tmp_path, test)


def test_fewer_slots_keep_the_leased_machines(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        pool = await w.open(3)
        leases = [await pool.allocate(h, 30, 20, "") for h in "abc"]
        keep = leases[2]
        for lease in leases[:2]:
            await pool.close(lease)
        await w.die()
        pool = await w.open(1)
        assert pool.lease(keep.id, keep.token).slot == 0
        assert len(w.pids()) == 1

    run(tmp_path, test)


def test_a_used_machine_is_cleaned_before_anybody_gets_it(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        pool = await w.open(1)
        lease = await pool.allocate("a", 30, 20, "")
        await pool.call(lease, "r", 1, reset)
        pool.draining = True  # no cleaning any more, as when the kill comes right after the close
        await pool.close(lease)
        await w.die()
        pool = await w.open(1)
        await pool.allocate("b", 30, 20, "")
        kinds = [json.loads(line)[3] for line in (w.root / "journal").read_text().splitlines()]
        assert kinds == ["boot", "reset", "clean"]

    run(tmp_path, test)


@pytest.mark.parametrize("keep", [True, False])
def test_a_graceful_end_leaves_machines_only_when_told(tmp_path: Path, keep: bool) -> None:
    async def test(w: World) -> None:
        pool = await w.open(2, keep=keep)
        lease = await pool.allocate("a", 30, 20, "")
        await pool.allocate("b", 30, 20, "")  # so both machines are up: one that still boots is ended either way
        before = w.pids()
        await pool.stop()
        assert w.pids() == (before if keep else {}) and len(before) == 2
        pool = await w.open(2)
        if keep:
            assert pool.lease(lease.id, lease.token)
        else:
            with pytest.raises(LeaseEnded, match="stopped"):
                pool.lease(lease.id, lease.token)
            assert pool.costs()["running"] <= 2

    run(tmp_path, test)


def test_one_server_a_state_file(tmp_path: Path) -> None:
    first = Store(str(tmp_path / "s.db"))
    with pytest.raises(StoreTaken, match=r"s\.db"):
        Store(str(tmp_path / "s.db"))
    first.close()
    Store(str(tmp_path / "s.db")).close()


def test_machines_that_die_with_the_server_end_their_leases(tmp_path: Path) -> None:
    async def main() -> None:
        path = str(tmp_path / "s.db")
        pool = Pool(NoopProvider(), PoolConfig(1), Store(path))
        await pool.start()
        lease = await pool.allocate("a", 30, 5, "")
        await pool.background.cancel()
        pool.store.close()
        pool = Pool(NoopProvider(), PoolConfig(1), Store(path))
        await pool.start()
        with pytest.raises(LeaseEnded, match="fenced"):
            pool.lease(lease.id, lease.token)
        assert (await pool.allocate("b", 30, 5, "")).token > lease.token
        await pool.stop()

    asyncio.run(main())
