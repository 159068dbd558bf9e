"""What every provider must do, whatever it is made of. A provider passes by a subclass with one fixture:

    class TestMyCloud(ProviderConformance):
        @pytest.fixture
        def cloud(self) -> Cloud: ...

`Cloud` stands for the world outside the pool: it makes providers (each as a pool's process would have it), breaks
machines behind their backs and injects the faults of an API. Tests never look inside a provider.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from guiderail.actions.types import Action, Click
from guiderail.envs.types import InfraError
from guiderail.pool.providers.base import (
    LABEL_NAME,
    LABEL_POOL,
    BootFailed,
    Misconfigured,
    Provider,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unreachable,
    Vm,
    VmSpec,
)
from guiderail.tasks.types import TaskSpec

NOOP, CLICK = TaskSpec("noop", "count", 1), Click(0.5, 0.5)
EXPECTED: dict[str, type[ProviderError]] = {
    "throttled": Throttled,  # more often than the provider's own retries bear
    "quota": QuotaExceeded,
    "boot_failure": BootFailed,  # create works, the machine never comes up
    "error_after_create": ProviderError,  # the API says 500 though the machine was made
    "half_dead": Unreachable,  # the API says it runs; nothing answers at its address
    "bad_credentials": Misconfigured,  # shows in start()
}


@dataclass
class Cloud:
    """The world of one provider. `faults` (names of EXPECTED) hold for all calls after they were armed."""

    provider: Callable[[], Provider]  # a new one on the same world, as after a restart of the pool
    kill: Callable[[Vm], Awaitable[None]]  # the machine dies, nobody tells the provider
    faults: dict[str, Callable[[], None]] = field(default_factory=dict)
    boot_s: float = 30.0  # a healthy machine is ready by then
    fault_boot_s: float = 2.0  # how long the suite waits for one that never is
    task: TaskSpec = NOOP
    action: Action = CLICK
    hard_ttl_s: float = 1.0  # a hard limit that can be waited for
    why_no_env: str = ""  # machines of this world carry no screen: connect is not tried, for this reason


def spec(name: str, pool: str = "pool-a", ttl_s: float = 600.0) -> VmSpec:
    return VmSpec(name, pool, "run-1", time.time() + ttl_s)


async def made(provider: Provider, cloud: Cloud, name: str, pool: str = "pool-a") -> Vm:
    return await provider.wait_ready(await provider.create(spec(name, pool)), cloud.boot_s)


async def names(provider: Provider, **labels: str) -> list[str]:
    known = {"pool": LABEL_POOL, "name": LABEL_NAME}
    return sorted(vm.name for vm in await provider.list({known[k]: v for k, v in labels.items()}))


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.05)


class ProviderConformance:
    """See the module."""

    def run(self, cloud: Cloud, test: Callable[[Provider], Awaitable[Any]]) -> None:
        async def main() -> None:
            provider = cloud.provider()
            await provider.start()
            try:
                await asyncio.wait_for(test(provider), 120)
            finally:
                for vm in [*await provider.list({LABEL_POOL: "pool-a"}), *await provider.list({LABEL_POOL: "pool-b"})]:
                    await provider.terminate(vm.id)
                await provider.stop()
                await provider.stop()

        asyncio.run(main())

    def test_a_machine_lives_works_and_ends(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            wanted = spec("a-1")
            vm = await provider.create(wanted)
            assert vm.name == "a-1" and vm.state in ("booting", "running")
            assert wanted.labels().items() <= vm.labels.items()
            vm = await provider.wait_ready(vm, cloud.boot_s)
            assert vm.state == "running" and vm.address and await provider.ready(vm)
            assert abs(vm.created - time.time()) < 90 and vm.price_per_hour >= 0
            assert provider.currency or vm.price_per_hour == 0
            (listed,) = await provider.list({LABEL_NAME: "a-1"})
            assert (listed.id, listed.address, listed.state) == (vm.id, vm.address, "running")
            await provider.terminate(vm.id)
            assert await provider.list({LABEL_NAME: "a-1"}) == [] and not await provider.ready(vm)

        self.run(cloud, test)

    def test_its_screen_can_be_worked(self, cloud: Cloud) -> None:
        if cloud.why_no_env:
            pytest.skip(cloud.why_no_env)

        async def test(provider: Provider) -> None:
            env = await provider.connect(await made(provider, cloud, "a-1"))
            first = await env.reset(cloud.task)
            assert first.observation.png.startswith(b"\x89PNG") and first.observation.step == 0
            assert (await env.step(cloud.action)).observation.step == 1
            assert isinstance(await env.evaluate(), float)
            assert (await env.reset(cloud.task)).observation.frame == first.observation.frame
            await env.close()
            await env.close()

        self.run(cloud, test)

    def test_list_tells_pools_and_names_apart(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            await asyncio.gather(*(made(provider, cloud, f"{p}-{i}", f"pool-{p}") for p in "ab" for i in range(2)))
            assert await names(provider, pool="pool-a") == ["a-0", "a-1"]
            assert await names(provider, pool="pool-b") == ["b-0", "b-1"]
            assert await names(provider, name="b-1") == ["b-1"]
            assert await names(provider, pool="pool-a", name="b-1") == []
            assert await names(provider, pool="pool-c") == []

        self.run(cloud, test)

    def test_one_name_makes_one_machine(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            wanted = spec("a-1")
            first = await provider.create(wanted)
            assert (await provider.create(wanted)).id == first.id
            if provider.durable:
                other = cloud.provider()
                await other.start()
                assert (await other.create(wanted)).id == first.id
                await other.stop()
            assert await names(provider, pool="pool-a") == ["a-1"]

        self.run(cloud, test)

    def test_terminate_is_idempotent(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            vm = await provider.create(spec("a-1"))  # perhaps still booting
            await asyncio.gather(provider.terminate(vm.id), provider.terminate(vm.id))
            await provider.terminate(vm.id)
            other = await made(provider, cloud, "a-2")
            await provider.terminate(other.id[:-1] + ("0" if other.id[-1] != "0" else "1"))  # well formed, not there
            assert await names(provider, pool="pool-a") == ["a-2"]

        self.run(cloud, test)

    def test_reset_gives_one_clean_machine(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            vm = await made(provider, cloud, "a-1")
            clean = await provider.reset(vm)
            assert clean.name == "a-1" and clean.state == "running" and await provider.ready(clean)
            listed = await provider.list({LABEL_POOL: "pool-a"})
            assert [x.id for x in listed] == [clean.id]
            assert clean.labels == vm.labels == listed[0].labels
            if not cloud.why_no_env:
                env = await provider.connect(clean)
                assert (await env.reset(cloud.task)).observation.step == 0
                await env.close()

        self.run(cloud, test)

    def test_a_killed_machine_is_noticed_and_can_be_ended(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            vm = await made(provider, cloud, "a-1")
            env = None if cloud.why_no_env else await provider.connect(vm)
            if env is not None:
                await env.reset(cloud.task)
            await cloud.kill(vm)
            start = time.monotonic()
            assert not await provider.ready(vm)
            assert time.monotonic() - start < 5
            if env is not None:
                with pytest.raises(InfraError):
                    await asyncio.wait_for(env.step(cloud.action), 30)
            await provider.terminate(vm.id)
            assert await names(provider, pool="pool-a") == []

        self.run(cloud, test)

    def test_what_is_left_when_the_pool_dies(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            vm = await made(provider, cloud, "a-1")
            await provider.stop()
            later = cloud.provider()
            await later.start()
            found = await later.list({LABEL_POOL: "pool-a"})
            if not provider.durable:
                assert found == []
                return
            assert [(x.id, x.name, dict(x.labels)) for x in found] == [(vm.id, "a-1", dict(vm.labels))]
            assert await later.ready(found[0])
            if not cloud.why_no_env:
                env = await later.connect(found[0])
                await env.reset(cloud.task)
                await env.close()
            await later.terminate(vm.id)
            assert await later.list({LABEL_POOL: "pool-a"}) == []
            await later.stop()

        self.run(cloud, test)

    @pytest.mark.parametrize("pause", [0.0, 0.001, 0.02])
    def test_a_cancelled_create_leaves_nothing_that_cannot_be_found(self, cloud: Cloud, pause: float) -> None:
        async def test(provider: Provider) -> None:
            task = asyncio.create_task(provider.create(spec("a-1")))
            await asyncio.sleep(pause)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.2)  # a request on its way may still make it
            for vm in await provider.list({LABEL_NAME: "a-1"}):
                await provider.terminate(vm.id)
            assert await names(provider, pool="pool-a") == []

        self.run(cloud, test)

    def test_the_hard_limit_ends_a_machine_that_nobody_ends(self, cloud: Cloud) -> None:
        async def test(provider: Provider) -> None:
            if not provider.hard_ttl:
                pytest.skip(f"{provider.name} has no hard limit of its own; the pool's sweeper ends what expired")
            vm = await provider.create(spec("a-1", ttl_s=cloud.hard_ttl_s))

            async def over() -> bool:
                listed = [x for x in await provider.list({LABEL_NAME: "a-1"}) if x.state != "gone"]
                return not listed and not await provider.ready(vm)

            await until(over, cloud.hard_ttl_s + 10)

        self.run(cloud, test)

    @pytest.mark.parametrize("fault", list(EXPECTED))
    def test_faults_have_a_class_and_leave_no_orphan(self, cloud: Cloud, fault: str) -> None:
        if fault not in cloud.faults:
            pytest.skip(f"this world cannot fail by {fault}")

        async def main() -> None:
            provider = cloud.provider()
            if fault == "bad_credentials":
                cloud.faults[fault]()
                with pytest.raises(EXPECTED[fault]) as e:
                    await provider.start()
            else:
                await provider.start()
                cloud.faults[fault]()
                with pytest.raises(EXPECTED[fault]) as e:
                    await provider.wait_ready(await provider.create(spec("a-1")), cloud.fault_boot_s)
                for vm in await provider.list({LABEL_NAME: "a-1"}):  # what the pool does after any failure
                    await provider.terminate(vm.id)
                assert await names(provider, pool="pool-a") == []
            assert len(str(e.value)) > 20 and e.value.retry == (fault != "bad_credentials")
            await provider.stop()

        asyncio.run(main())
