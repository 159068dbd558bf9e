"""Tasks whose setup and judge take longer than a call: the pool and its clients wait as long as the screen says."""

import asyncio

import pytest

from guiderail.actions.types import Type
from guiderail.envs.types import TASK_S, Env, InfraError, StepResult, Unhurried
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.config import PoolConfig
from guiderail.pool.manager import Pool
from guiderail.pool.providers.noop import NoopEnv, NoopProvider
from guiderail.tasks.types import TaskSpec
from pool.serving import TOKEN, serving

CALL_S = 0.5
TASK = TaskSpec("noop", "count", 0)


class Slow(NoopEnv):
    """Setup, judge and action take twice a call's time."""

    async def reset(self, task: TaskSpec) -> StepResult:
        await asyncio.sleep(2 * CALL_S)
        return await super().reset(task)

    async def evaluate(self) -> float:
        await asyncio.sleep(2 * CALL_S)
        return await super().evaluate()

    async def step(self, action: object) -> StepResult:
        await asyncio.sleep(2 * CALL_S)
        raise AssertionError("it was ended before")


class SlowAndSaysSo(Slow):
    task_s = 60.0


class Desks(NoopProvider):
    def __init__(self, kind: type[NoopEnv]) -> None:
        super().__init__(0.0)
        self.kind = kind

    async def new_env(self) -> Env:
        await super().new_env()
        return self.kind()


def play(kind: type[NoopEnv]) -> list[str]:
    """Causes of what failed of a reset, a judgement and a step."""
    causes = []

    async def main() -> None:
        pool = Pool(Desks(kind), PoolConfig(1, CALL_S, 30.0, boot_timeout_s=20.0))
        async with serving(pool) as url, PoolClient(url, TOKEN) as client:
            for call in ("reset", "evaluate", "step"):
                env = RemoteEnv(client, await client.allocate("t", 20.0))
                try:
                    if call != "reset":
                        await env.reset(TASK)
                    match call:
                        case "reset":
                            await env.reset(TASK)
                        case "evaluate":
                            await env.evaluate()
                        case "step":
                            await env.step(Type("x"))
                except InfraError as e:
                    causes.append(f"{call}: {e.cause}")
                await env.close()

    asyncio.run(main())
    return causes


def test_setup_and_judge_may_take_longer_where_the_screen_says_so_and_actions_may_not() -> None:
    assert isinstance(SlowAndSaysSo(), Unhurried) and not isinstance(Slow(), Unhurried)
    assert play(SlowAndSaysSo) == ["step: timeout"]


def test_elsewhere_a_screen_that_does_not_answer_in_time_is_replaced() -> None:
    assert play(Slow)[0] == "reset: timeout"


@pytest.mark.parametrize("what", ["setup_s", "judge_s"])
def test_desktops_ask_for_what_osworlds_tasks_may_take(what: str) -> None:
    from guiderail.envs.desktop import DesktopEnv
    from guiderail.envs.osworld_book import OsworldDesktopTask

    assert 0 < getattr(OsworldDesktopTask, what) <= DesktopEnv.task_s <= TASK_S
