"""The pool without HTTP: at most once, infra errors, rebuilding, queueing. The environment counts its steps."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import orjson
import pytest

from guiderail.actions.types import Action, Click, Type, Wait
from guiderail.envs.types import Env, InfraError, StepResult
from guiderail.pool.client import PoolClient
from guiderail.pool.config import PoolConfig
from guiderail.pool.leases import Busy, Draining, LeaseEnded, NoSlot, RequestReused
from guiderail.pool.manager import Pool
from guiderail.pool.providers.noop import NoopEnv, NoopProvider
from guiderail.pool.wire import Reply
from guiderail.tasks.types import TaskSpec
from pool.serving import TOKEN, serving

TASK = TaskSpec("noop", "count", 1)


def run(test: Callable[[Pool], Awaitable[None]], slots: int = 1, timeout: float = 0.5, ttl: float = 30.0) -> None:
    async def main() -> None:
        pool = Pool(NoopProvider(), PoolConfig(slots, timeout, ttl))
        await pool.start()
        try:
            await test(pool)
        finally:
            await pool.stop()

    asyncio.run(main())


async def reset(env: Env) -> Reply:
    await env.reset(TASK)
    return Reply(200, b"{}")


def act(action: Click | Type) -> Callable[[Env], Awaitable[Reply]]:
    async def do(env: Env) -> Reply:
        result = await env.step(action)
        return Reply(200, orjson.dumps(result.raw_reward))

    return do


CLICK = act(Click(0.5, 0.5))


def test_same_request_id_acts_once_also_while_running() -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("t", 30, 1, "")
        await pool.call(lease, "r", 0, reset)
        first, second = await asyncio.gather(*(pool.call(lease, "a", 1, act(Type("!slow"))) for _ in range(2)))
        third = await pool.call(lease, "a", 1, act(Type("!slow")))
        assert first == second == third == Reply(200, b"1.0")
        assert (await pool.call(lease, "b", 2, CLICK)).body == b"2.0"

    run(test)


class Patient(NoopProvider):
    """Its screens do wait when they are told to."""

    async def new_env(self) -> Env:
        class Waits(NoopEnv):
            async def step(self, action: Action) -> StepResult:
                if isinstance(action, Wait):
                    await asyncio.sleep(action.seconds)
                return await super().step(action)

        return Waits()


def test_an_agent_that_waits_is_no_screen_that_hangs() -> None:
    """Longer than a call may take, by the agent's own wish: it is played, and the lease lives on."""

    async def main() -> None:
        pool = Pool(Patient(), PoolConfig(1, 1.0, 30.0))
        async with serving(pool) as url, PoolClient(url, TOKEN) as client, client.env("t") as env:
            await env.reset(TASK)
            assert (await env.step(Wait(1.6))).raw_reward == 1.0
            assert (await env.step(Click(0.5, 0.5))).raw_reward == 2.0
            with pytest.raises(InfraError) as e:  # nobody asked this one to take its time
                await env.step(Type("!hang"))
            assert e.value.cause == "timeout"

    asyncio.run(main())


def test_request_id_reused_for_something_else_or_too_late() -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("t", 30, 1, "")
        await pool.call(lease, "r", 0, reset)
        for i in range(10):
            await pool.call(lease, f"s{i}", i, CLICK)
        with pytest.raises(RequestReused, match="another request"):
            await pool.call(lease, "s9", 77, CLICK)
        with pytest.raises(RequestReused, match="no longer kept"):
            await pool.call(lease, "s0", 0, CLICK)
        assert (await pool.call(lease, "last", 0, CLICK)).body == b"11.0"

    run(test)


def test_second_call_at_a_time_is_busy() -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("t", 30, 1, "")
        await pool.call(lease, "r", 0, reset)
        slow = asyncio.create_task(pool.call(lease, "a", 0, act(Type("!slow"))))
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await pool.call(lease, "b", 0, CLICK)
        assert (await slow).body == b"1.0"

    run(test)


@pytest.mark.parametrize(
    ("text", "status", "cause"), [("!crash", 502, "crash"), ("!hang", 504, "timeout"), ("!bug", 502, "crash")]
)
def test_faults_are_infra_errors_and_the_slot_is_rebuilt(text: str, status: int, cause: str) -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("t", 30, 1, "")
        broken = pool.machines.slots[lease.slot].env
        await pool.call(lease, "r", 0, reset)
        reply = await pool.call(lease, "a", 1, act(Type(text)))
        said = orjson.loads(reply.body)
        assert (reply.status, said["error"], said["cause"]) == (status, "infra_error", cause)
        with pytest.raises(LeaseEnded, match="revoked"):
            pool.lease(lease.id, lease.token)
        fresh = await pool.allocate("t", 30, 2, "")
        assert fresh.token > lease.token
        env = pool.machines.slots[fresh.slot].env
        assert env is not broken and isinstance(env, NoopEnv) and env.steps == 0
        assert isinstance(broken, NoopEnv) and broken.dead
        assert pool.counts["infra_errors"] == pool.counts["rebuilds"] == 1

    run(test, timeout=0.3)


def test_bad_input_costs_nothing() -> None:
    async def unknown(env: Env) -> Reply:
        await env.reset(TaskSpec("noop", "missing", 1))
        raise AssertionError

    async def test(pool: Pool) -> None:
        lease = await pool.allocate("t", 30, 1, "")
        reply = await pool.call(lease, "r", 0, unknown)
        assert reply.status == 422 and b"does not exist" in reply.body
        assert (await pool.call(lease, "r2", 0, reset)).status == 200
        assert pool.counts["infra_errors"] == 0

    run(test)


def test_first_come_first_served_and_nothing_leaks_on_time_out() -> None:
    async def test(pool: Pool) -> None:
        first = await pool.allocate("a", 30, 1, "")
        with pytest.raises(NoSlot, match="1 of 1 are lent"):
            await pool.allocate("b", 30, 0.05, "")
        order: list[str] = []

        async def take(name: str) -> None:
            lease = await pool.allocate(name, 30, 5, "")
            order.append(name)
            await pool.close(lease)

        tasks = []
        for name in "cdef":
            tasks.append(asyncio.create_task(take(name)))
            await asyncio.sleep(0)
        await pool.close(first)
        await asyncio.gather(*tasks)
        assert order == list("cdef")
        assert pool.table.idle() == [0]

    run(test)


def test_retried_allocation_gets_the_same_slot() -> None:
    async def test(pool: Pool) -> None:
        leases = await asyncio.gather(*(pool.allocate("a", 30, 1, "same") for _ in range(3)))
        again = await pool.allocate("a", 30, 1, "same")
        assert len({x.id for x in [*leases, again]}) == 1
        assert len(pool.table.leases) == 1

    run(test, slots=3)


def test_silent_holder_loses_its_slot_but_a_running_call_pins_it() -> None:
    async def test(pool: Pool) -> None:
        lease = await pool.allocate("gone", 0.2, 1, "")
        await pool.call(lease, "r", 0, reset)
        start = time.monotonic()
        assert (await pool.call(lease, "a", 0, act(Type("!slow")))).status == 200  # 0.3 s, longer than the lease
        assert time.monotonic() - start < 1
        other = await pool.allocate("next", 30, 3, "")
        assert other.slot == lease.slot and other.token > lease.token
        with pytest.raises(LeaseEnded, match="expired"):
            pool.lease(lease.id, lease.token)
        assert pool.counts["expired"] == 1

    run(test)


def test_booting_slots_block_nobody_and_failed_boots_are_tried_again() -> None:
    booted = asyncio.Event()

    class Flaky(NoopProvider):
        tries = 0

        async def new_env(self) -> Env:
            self.tries += 1
            if self.tries == 2:
                raise RuntimeError("no memory")
            if self.tries == 3:
                await booted.wait()
            return NoopEnv()

    async def main() -> None:
        pool = Pool(Flaky(), PoolConfig(2, 1.0, 30.0))
        await pool.start()
        lease = await pool.allocate("a", 30, 1, "")
        await pool.call(lease, "r", 0, reset)
        for i in range(20):
            await pool.call(lease, str(i), i, CLICK)
        assert pool.table.state.count("down") == 1  # the other slot is still booting
        booted.set()
        assert (await pool.allocate("b", 30, 3, "")).slot != lease.slot
        await pool.stop()

    asyncio.run(main())


def test_idle_slot_that_died_is_never_lent() -> None:
    async def test(pool: Pool) -> None:
        await asyncio.sleep(0.05)
        env = pool.machines.slots[0].env
        assert isinstance(env, NoopEnv)
        env.dead = True
        lease = await pool.allocate("a", 30, 2, "")
        assert pool.machines.slots[lease.slot].env is not env

    run(test)


def test_drain_tells_who_waits() -> None:
    async def test(pool: Pool) -> None:
        await pool.allocate("a", 30, 1, "")
        waiting = asyncio.create_task(pool.allocate("b", 30, 30, ""))
        await asyncio.sleep(0.05)
        pool.drain()
        with pytest.raises(Draining):
            await waiting
        with pytest.raises(Draining):
            await pool.allocate("c", 30, 1, "")

    run(test)


def test_browsers_for() -> None:
    from guiderail.pool.providers import browsers_for

    assert [browsers_for(s, c) for s, c in ((1, 2), (8, 2), (9, 2), (16, 2), (64, 2), (64, 96), (16, 1))] == [
        1, 1, 2, 2, 2, 8, 1,
    ]  # fmt: skip
