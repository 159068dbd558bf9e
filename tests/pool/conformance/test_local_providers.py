"""The providers that need nothing but this computer pass the suite."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from guiderail.params_desktop import Desktop
from guiderail.pool.providers import make_provider
from guiderail.pool.providers.base import Provider, Vm
from guiderail.pool.providers.local_browser import LocalBrowserProvider
from guiderail.pool.providers.local_desktop import LocalDesktopProvider
from guiderail.pool.providers.noop import NoopEnv, NoopProvider
from guiderail.pool.providers.process import ProcessProvider
from guiderail.tasks.types import TaskSpec
from pool.conformance.suite import Cloud, ProviderConformance
from pool.vm.here import needs_walls


def last(make: Callable[[], Provider], made: list[Provider]) -> Callable[[], Provider]:
    def provider() -> Provider:
        made.append(make())
        return made[-1]

    return provider


class TestNoop(ProviderConformance):
    @pytest.fixture
    def cloud(self) -> Cloud:
        made: list[Provider] = []

        async def kill(vm: Vm) -> None:
            provider = made[-1]
            assert isinstance(provider, NoopProvider)
            env = provider.envs[vm.id]
            assert isinstance(env, NoopEnv)
            env.dead = True

        return Cloud(last(lambda: make_provider("noop", slots=4), made), kill)


class TestProcess(ProviderConformance):
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Iterator[Cloud]:
        def make() -> Provider:
            return make_provider("process", slots=4, root=str(tmp_path))

        made: list[Provider] = []

        async def kill(vm: Vm) -> None:
            os.kill(int((tmp_path / "vms" / vm.id / "pid").read_text().split()[0]), signal.SIGKILL)
            await asyncio.sleep(0.05)

        def never_boots() -> None:
            provider = made[-1]
            assert isinstance(provider, ProcessProvider)
            provider.boot_s = 60.0

        yield Cloud(last(make, made), kill, {"boot_failure": never_boots, "half_dead": never_boots})
        end = time.monotonic() + 10  # a process whose folder is gone ends as soon as it looks
        while left := [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]:
            assert time.monotonic() < end, left
            time.sleep(0.05)


@pytest.mark.browser
class TestLocalBrowser(ProviderConformance):
    @pytest.fixture
    def cloud(self) -> Cloud:
        made: list[Provider] = []

        async def kill(vm: Vm) -> None:
            provider = made[-1]
            assert isinstance(provider, LocalBrowserProvider)
            for browser in provider.browsers:
                assert browser is not None
                for p in psutil.Process(browser.pid).children():
                    p.kill()
                await asyncio.wait_for(browser._running.guard.wait(), 10)
            await asyncio.sleep(0.1)

        def make() -> Provider:
            return make_provider("local_browser", slots=1, call_timeout_s=10.0)

        return Cloud(last(make, made), kill, task=TaskSpec("miniwob", "click-button", 3))


@needs_walls
class TestLocalDesktop(ProviderConformance):
    @pytest.fixture
    def cloud(self) -> Cloud:
        made: list[Provider] = []

        async def kill(vm: Vm) -> None:
            provider = made[-1]
            assert isinstance(provider, LocalDesktopProvider)
            slot = provider.slots[provider.envs[vm.id]]
            for p in psutil.Process(slot.guard.pid).children():
                p.kill()
            await asyncio.wait_for(slot.guard.wait(), 10)

        def make() -> Provider:
            return make_provider("local_desktop", slots=2, desktop=Desktop(width=640, height=480), call_timeout_s=30.0)

        return Cloud(last(make, made), kill, task=TaskSpec("blank", "blank", 0))
