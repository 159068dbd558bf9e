"""The server dies at every single point: before and after each write to its state and each call of its provider.

Afterwards a new server on the same state must hold exactly its slots' machines, answer for the old lease (alive, or
ended by name), have done no action twice, and lend a machine.
"""

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from guiderail.actions.types import Type
from guiderail.envs.types import Env
from guiderail.pool.config import PoolConfig
from guiderail.pool.leases import LeaseEnded, LeaseError
from guiderail.pool.manager import Pool
from guiderail.pool.providers.base import LABEL_POOL
from guiderail.pool.providers.process import ProcessProvider
from guiderail.pool.store import Store
from guiderail.pool.wire import Reply
from guiderail.tasks.types import TaskSpec

WRITES = ("vm_asked", "vm_made", "vm_state", "vm_ended", "lease_granted", "lease_ended", "call_begun", "call_done")
CALLS = ("create", "wait_ready", "connect", "reset", "terminate", "list")
POINTS = 150  # more than the scenario has; those beyond its end are told apart by nobody having died


class Dead(BaseException):
    """The process is no more."""


class Fate:
    """Counts points and strikes at number `at`; from then on nothing comes through."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.dead, self.where = at, 0, asyncio.Event(), ""

    def point(self, where: str) -> None:
        """A place to die at."""
        if self.dead.is_set():
            raise Dead
        self.count += 1
        if self.count == self.at:
            self.where = where
            self.dead.set()
            raise Dead

    def guard(self, thing: Any, names: tuple[str, ...]) -> None:
        """Points before and after each of the methods."""
        for name in names:
            real = getattr(thing, name)

            def sync(*a: Any, real: Any = real, name: str = name) -> Any:
                self.point(f"before {name}")
                out = real(*a)
                self.point(f"after {name}")
                return out

            async def waiting(*a: Any, real: Any = real, name: str = name) -> Any:
                try:
                    self.point(f"before {name}")
                    out = await real(*a)
                    self.point(f"after {name}")
                    return out
                except Dead:
                    await asyncio.Event().wait()  # nobody goes on after the end, clearing up least of all

            setattr(thing, name, waiting if asyncio.iscoroutinefunction(real) else sync)


async def reset(env: Env) -> Reply:
    await env.reset(TaskSpec("noop", "count", 1))
    return Reply(200, b"{}")


async def scenario(pool: Pool, told: dict[str, Any]) -> None:
    """Boot, lend, work, give back, clean, lend again."""

    async def act(env: Env) -> Reply:
        await env.step(Type("once"))
        return Reply(200, b"{}")

    await pool.start()
    lease = told["lease"] = await pool.allocate("me", 30, 20, "a-1")
    await pool.call(lease, "r", 1, reset)
    await pool.call(lease, "s", 2, act)
    told["acted"] = True
    await pool.close(lease)
    told["closed"] = True
    await pool.allocate("next", 30, 20, "a-2")


async def die_at(root: Path, at: int) -> str:
    """Where it died, "" when the scenario was over before."""
    others = asyncio.all_tasks()
    provider, state = ProcessProvider(root), str(root / "state.db")
    pool = Pool(provider, PoolConfig(1, 5.0, 30.0, "mine"), Store(state))
    fate, told = Fate(at), {}
    fate.guard(pool.store, WRITES)
    fate.guard(provider, CALLS)

    async def play() -> None:
        with contextlib.suppress(Dead, LeaseError):
            await scenario(pool, told)

    playing = asyncio.create_task(play())
    dying = asyncio.create_task(fate.dead.wait())
    await asyncio.wait([playing, dying], return_when=asyncio.FIRST_COMPLETED)
    where = fate.where
    fate.at = -1
    fate.dead.set()  # also when the scenario was over: the kill comes in the end at last
    while tasks := asyncio.all_tasks() - others:
        for task in tasks:  # more than once: clearing up hangs too
            task.cancel()
        await asyncio.wait(tasks, timeout=0.05)
    for slot in pool.machines.slots:
        if slot.env is not None:
            await slot.env.close()
    pool.store.close()
    await check(root, told, where)
    return where


async def check(root: Path, told: dict[str, Any], where: str) -> None:
    """See the module."""
    provider = ProcessProvider(root)
    pool = Pool(provider, PoolConfig(1, 5.0, 30.0, "mine"), Store(str(root / "state.db")))
    try:
        await pool.start()
        if "lease" in told:
            lease = told["lease"]
            try:
                alive = pool.lease(lease.id, lease.token)
            except LeaseEnded:
                pass
            else:
                assert "closed" not in told, where
                if "acted" in told:
                    await pool.call(alive, "s", 2, reset)  # asked again: told, not done
                await pool.close(alive)
        # what was granted but never told is found by asking again
        for holder, request in (("me", "a-1"), ("next", "a-2"))["lease" in told :]:
            await pool.close(await pool.allocate(holder, 30, 20, request))
        fresh = await asyncio.wait_for(pool.allocate("after", 30, 20, ""), 30)
        assert fresh.token > (told["lease"].token if "lease" in told else 0), where
        vm = pool.machines.slots[0].vm
        assert vm is not None
        assert [x.name for x in await provider.list({LABEL_POOL: "mine"})] == [vm.name], where
        assert pool.costs()["running"] == 1, where
    finally:
        await pool.stop()
    assert await provider.list({}) == [], where
    journal = root / "journal"
    lines = [json.loads(x) for x in journal.read_text().splitlines()] if journal.exists() else []
    steps = Counter(what for *_, kind, what in lines if kind == "step")
    assert all(n == 1 for n in steps.values()) and ("acted" not in told or steps), (where, steps)


@pytest.mark.parametrize("part", range(4))
def test_a_server_that_dies_anywhere_leaves_nothing_and_loses_nothing(part: int, tmp_path: Path) -> None:
    async def main() -> list[str]:
        died = []
        for at in range(1 + part, POINTS, 4):
            where = await die_at(tmp_path / str(at), at)
            if not where:
                break
            died.append(where)
        return died

    died = asyncio.run(main())
    assert len(died) >= 8, died
