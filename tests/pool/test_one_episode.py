"""Machines that serve one episode and boot slowly, as stock images do: the client takes lease after lease."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from guiderail.envs.types import Env, StepResult, UsedUp
from guiderail.pool.client import NoSlotError, PoolClient, RemoteEnv
from guiderail.pool.config import PoolConfig
from guiderail.pool.manager import Pool
from guiderail.pool.providers.noop import NoopEnv, NoopProvider
from guiderail.pool.work import map_pool
from guiderail.tasks.types import TaskSpec
from pool.serving import TOKEN, serving


class Once(NoopEnv):
    """Refuses a second reset, as a desktop that cannot make itself anew does."""

    async def reset(self, task: TaskSpec) -> StepResult:
        if self.task is not None:
            raise UsedUp("has had its episode")
        return await super().reset(task)


class Stock(NoopProvider):
    """`made`: machines that were made."""

    reset_between_leases = True

    def __init__(self, boot_s: float) -> None:
        super().__init__(boot_s)
        self.made = 0

    async def new_env(self) -> Env:
        await super().new_env()
        self.made += 1
        return Once()


class Broken(Stock):
    """Never boots."""

    async def new_env(self) -> Env:
        await super().new_env()
        raise RuntimeError("no image")


def serve(provider: Stock, slots: int, test: Callable[[PoolClient, Pool], Awaitable[None]]) -> None:
    async def main() -> None:
        pool = Pool(provider, PoolConfig(slots, 2.0, 30.0, boot_timeout_s=20.0))
        async with serving(pool) as url, PoolClient(url, TOKEN) as client:
            await asyncio.wait_for(test(client, pool), 60)

    asyncio.run(main())


@pytest.mark.parametrize("slots", [1, 2])
def test_jobs_of_several_episodes_do_each_on_a_machine_of_its_own(slots: int) -> None:
    provider = Stock(0.05)

    async def test(client: PoolClient, pool: Pool) -> None:
        async def job(env: RemoteEnv, n: int) -> list[int]:
            return [(await env.reset(TaskSpec("noop", "count", 10 * n + i))).observation.step for i in range(3)]

        got = await map_pool(client, [1, 2], job, workers=2, retries=0, holder="jobs")
        assert got == [[0, 0, 0]] * 2
        assert pool.status()["infra_errors"] == 0 and pool.status()["rebuilds"] == 0
        assert client.leases == {}  # none of the six is held any more

    serve(provider, slots, test)
    assert provider.made >= 6


def test_who_waits_for_a_machine_under_way_waits_as_long_as_a_boot_may_take() -> None:
    async def test(client: PoolClient, pool: Pool) -> None:
        lease = await client.allocate("t", timeout_s=0.05)  # a boot takes ten times that
        with pytest.raises(NoSlotError, match="1 of 1 are lent") as e:  # nothing is on its way
            await client.allocate("t", timeout_s=0.05)
        assert e.value.boot_s == 0.0
        await client.release(lease)

    serve(Stock(0.5), 1, test)


def test_nobody_waits_longer_for_machines_that_do_not_boot() -> None:
    async def test(client: PoolClient, pool: Pool) -> None:
        while pool.machines.trouble is None:
            await asyncio.sleep(0.01)
        with pytest.raises(NoSlotError, match="no image") as e:
            await client.allocate("t", timeout_s=0.05)
        assert e.value.boot_s == 0.0

    serve(Broken(0.0), 1, test)
