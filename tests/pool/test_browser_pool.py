"""The pool with a real Chromium: crashes and hangs are infra errors, the slot comes back, no process is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from guiderail.actions.types import Click, Open
from guiderail.envs.browser import BrowserEnv
from guiderail.envs.types import Env, InfraError
from guiderail.pool.config import PoolConfig
from guiderail.pool.manager import Pool
from guiderail.pool.providers.local_browser import LocalBrowserProvider
from guiderail.pool.wire import Reply
from guiderail.tasks.types import TaskSpec

pytestmark = pytest.mark.browser
TASK = TaskSpec("miniwob", "click-button", 5)
PARENT = """
import sys, time
from guiderail.params import Env
from guiderail.pool.local import env_pool
with env_pool(Env(slots=2, lease_ttl_s=5.0)) as (url, token):
    print(url, token, flush=True)
    time.sleep(600)
"""


async def reset(env: Env) -> Reply:
    return Reply(200, (await env.reset(TASK)).observation.frame.encode())


async def click(env: Env) -> Reply:
    await env.step(Click(0.99, 0.99))
    return Reply(200, b"{}")


def test_crash_hang_and_death_of_the_browser() -> None:
    async def main() -> None:
        pool = Pool(LocalBrowserProvider(call_timeout_s=5.0), PoolConfig(2, 5.0, 60.0))
        await pool.start()
        try:
            lease = await pool.allocate("t", 60, 60, "")
            first = (await pool.call(lease, "r0", 0, reset)).body

            async def crash(env: Env) -> Reply:
                assert isinstance(env, BrowserEnv)
                env._send("Page.crash")
                return await click(env)

            reply = await pool.call(lease, "crash", 0, crash)
            assert reply.status == 502 and b'"cause":"crash"' in reply.body

            lease = await pool.allocate("t", 60, 60, "")
            assert (await pool.call(lease, "r1", 0, reset)).body == first  # another page, the same picture

            async def hang(env: Env) -> Reply:
                assert isinstance(env, BrowserEnv)
                env._send("Runtime.evaluate", {"expression": "for(;;){}"})
                return await click(env)

            start = time.monotonic()
            reply = await pool.call(lease, "hang", 0, hang)
            assert reply.status == 504 and b'"cause":"timeout"' in reply.body
            assert time.monotonic() - start < 8

            lease = await pool.allocate("t", 60, 60, "")
            assert (await pool.call(lease, "r2", 0, reset)).body == first

            async def unfit(env: Env) -> Reply:
                await env.step(Open("calculator"))
                raise AssertionError

            assert (await pool.call(lease, "open", 0, unfit)).status == 422  # the agent's error costs nothing
            assert (await pool.call(lease, "click", 0, click)).status == 200

            guards = [b.pid for b in pool.provider.browsers]  # type: ignore[attr-defined]
            victims = [p for guard in guards for p in psutil.Process(guard).children()]
            for victim in victims:
                victim.kill()
            psutil.wait_procs(victims, timeout=10)  # a busy machine takes its time
            assert (await pool.call(lease, "dead", 0, click)).status == 502
            lease = await pool.allocate("t", 60, 60, "")
            assert (await pool.call(lease, "r3", 0, reset)).body == first
            assert not {b.pid for b in pool.provider.browsers} & set(guards)  # type: ignore[attr-defined]
            assert pool.counts["infra_errors"] == 3
        finally:
            await pool.stop()

    mine = psutil.Process()
    before = {p.pid for p in mine.children(recursive=True)}
    asyncio.run(main())
    assert {p.pid for p in mine.children(recursive=True)} - before == set()


def test_missing_browser_is_named(tmp_path: Path) -> None:
    from guiderail.params import Env as EnvParams
    from guiderail.pool.local import env_pool
    from guiderail.services import ServiceError

    with (
        pytest.raises(ServiceError, match="/nonexistent/chromium"),
        env_pool(EnvParams(slots=1, browser="/nonexistent/chromium")),
    ):
        pass


@pytest.mark.parametrize("victim", ["parent", "server"])
def test_kill_9_leaves_no_browser(victim: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    url, token = parent.stdout.readline().split()

    async def use() -> None:
        from guiderail.pool.client import PoolClient

        async with PoolClient(url, token) as client, client.env("t") as env:
            await env.reset(TASK)

    asyncio.run(use())
    below = psutil.Process(parent.pid).children(recursive=True)
    assert any("chrom" in p.name() or "headless" in p.name() for p in below)
    server = next(
        p for p in below if "guiderail.pool.server" in p.cmdline() and "service_guard" not in str(p.cmdline())
    )
    os.kill(parent.pid if victim == "parent" else server.pid, signal.SIGKILL)
    if victim == "parent":
        parent.wait(10)
    end = time.monotonic() + 30
    while (left := [p for p in below if p.is_running() and p.status() != "zombie"]) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []
    parent.kill()
    parent.wait(10)


def test_infra_error_is_not_a_value_error() -> None:
    assert not issubclass(InfraError, ValueError)  # callers tell the agent's errors from ours by this
