"""What the provider suite does not ask of local desktops: their end with their owner, and life without walls."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from guiderail.params import Params
from guiderail.params_desktop import Desktop
from guiderail.pool import options
from guiderail.pool.providers import local_desktop as module
from guiderail.pool.providers import make_desktop, make_provider
from guiderail.pool.providers.base import Misconfigured, VmSpec
from guiderail.pool.providers.local_desktop import LocalDesktopProvider
from guiderail.tasks.types import TaskSpec
from pool.vm.here import needs_desktop, needs_walls

OWNER = """
import asyncio, sys, time
from guiderail.pool.vm.launch import start_slot
from guiderail.pool.vm.sandbox import Limits
from guiderail.pool.vm.settle import Rule
slot = asyncio.run(start_slot((320, 240), Limits(), Rule()))
print(slot.guard.pid, slot.folder, flush=True)
time.sleep(600)
"""


@needs_walls
def test_a_killed_owner_leaves_no_process_and_no_file() -> None:
    """Also started from a loop that has ended: nothing hangs on the thread that started it."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
    names = {p.name() for p in family}
    assert {"Xvfb", "openbox", "tint2", "pcmanfm"} <= names
    time.sleep(0.5)
    assert all(p.is_running() for p in family if p.name() in ("Xvfb", "openbox", "tint2"))
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    end = time.monotonic() + 5
    while os.path.exists(folder):
        assert time.monotonic() < end
        time.sleep(0.05)


@needs_desktop
def test_without_walls_it_says_so_aloud_and_still_works(caplog: pytest.LogCaptureFixture) -> None:
    """Here the X server tells its number: the pipe is read until the newline, or Xvfb dies."""

    async def main() -> None:
        provider = LocalDesktopProvider(size=(640, 480), walls=False, call_timeout_s=60.0)
        await provider.start()
        assert "NOT isolated" in caplog.text
        try:
            vm = await provider.create(VmSpec("a", "pool"))
            env = provider.envs[vm.id]
            assert isinstance(env, module.DesktopEnv)
            assert env.machine.about["sandboxed"] is False
            first = await env.reset(TaskSpec("blank", "blank", 0))
            ran = await env.machine.execute("echo $HOME; touch ~/x; sleep 97 & disown", shell=True)
            assert ran.output.strip() == env.machine.home and "guiderail-desktop-" in env.machine.home
            again = await env.reset(TaskSpec("blank", "blank", 1))
            assert again.observation.frame == first.observation.frame
            assert "x" not in await env.machine.tree()
            below = psutil.Process(provider.slots[env].guard.pid).children(recursive=True)
            server = next(p for p in below if "guiderail.pool.vm.server" in p.cmdline())
            assert server.memory_full_info().uss < 32e6, "frames go back to the system when they are done with"
            assert not any(p.name() == "sleep" for p in below)
        finally:
            await provider.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing", lambda: ["bubblewrap", "xvfb"])
    with pytest.raises(Misconfigured, match=r"needs bubblewrap, xvfb: run `guiderail doctor --install desktop`"):
        asyncio.run(LocalDesktopProvider().start())


def test_parameters_reach_the_desktop() -> None:
    d = Desktop(width=800, height=600, quiet_ms=90.0, settle_s=2.0, memory_mb=512, home_mb=32, processes=99)
    made = make_provider("local_desktop", slots=1, desktop=options.desktop_of(d.model_dump_json()), call_timeout_s=10.0)
    assert isinstance(made, LocalDesktopProvider)
    assert (made.size, made.rule.quiet_s, made.rule.limit_s) == ((800, 600), 0.09, 2.0)
    assert (made.limits.memory_mb, made.limits.home_mb, made.limits.processes) == (512, 32, 99)
    assert Params.model_validate({"env": {"provider": "local_desktop"}}).env.desktop == Desktop()
    assert make_desktop(None, 20.0).name == "local_desktop"
