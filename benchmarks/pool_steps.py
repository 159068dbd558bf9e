"""What the env pool costs: steps through it over HTTP against the same steps on the bare environment.

    python benchmarks/pool_steps.py [--steps 300] [--slots 8] [--overhead]

Prints the pool's overhead measured on an environment that does nothing (with our client and, for comparison, with
httpx); for one screen: p50 and p99 milliseconds of a step bare and through the pool; for `--slots` screens at a time:
steps/s by wall clock and by CPU time of all processes (the figure that least depends on what else the machine does).
Both sides do the same clicks on the same tasks; a reset counts as a step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator

import httpx
import orjson
import psutil

from guiderail.actions.types import Click
from guiderail.envs.browser import Browser
from guiderail.envs.types import Env
from guiderail.params import Env as EnvParams
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.local import env_pool
from guiderail.tasks.types import TaskSpec

TEMPLATES = ["click-button", "click-link", "enter-text", "click-checkboxes"]


def tasks(offset: int) -> Iterator[TaskSpec]:
    """Endless instances, a template for 10 episodes at a time."""
    for n in itertools.count(offset * 1000):
        yield TaskSpec("miniwob", TEMPLATES[(n // 10) % len(TEMPLATES)], n)


async def drive(env: Env, steps: int, offset: int = 0) -> list[float]:
    """Episodes of one reset and four clicks; returns the seconds of each."""
    times: list[float] = []
    source = tasks(offset)
    while len(times) < steps:
        start = time.perf_counter()
        result = await env.reset(next(source))
        times.append(time.perf_counter() - start)
        for k in range(4):
            if result.done or len(times) >= steps:
                break
            start = time.perf_counter()
            result = await env.step(Click(0.3 + 0.1 * k, 0.95))
            times.append(time.perf_counter() - start)
    return times


def percentile(times: list[float], q: float) -> float:
    """Milliseconds."""
    return sorted(times)[min(len(times) - 1, int(q * len(times)))] * 1000


def line(name: str, times: list[float]) -> None:
    """One row of the table."""
    print(f"{name:46s} p50 {percentile(times, 0.5):7.2f} ms   p99 {percentile(times, 0.99):7.2f} ms")


class Cpu:
    """CPU seconds of this process and all below it, also of those that end while it runs (sampled)."""

    def __init__(self) -> None:
        self.me = psutil.Process()

    def total(self) -> float:
        """User plus system seconds so far of all living processes below us."""
        seconds = 0.0
        for p in [self.me, *self.me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                t = p.cpu_times()
                seconds += t.user + t.system
        return seconds


async def together(envs: list[Env], steps: int) -> tuple[float, float]:
    """Steps/s by wall clock and by CPU of all processes, all environments at a time."""
    await asyncio.gather(*(drive(e, 10, i) for i, e in enumerate(envs)))
    cpu, start, wall = Cpu(), 0.0, time.perf_counter()
    start = cpu.total()
    per = max(10, steps // len(envs))
    await asyncio.gather(*(drive(e, per, i) for i, e in enumerate(envs)))
    n = per * len(envs)
    return n / (time.perf_counter() - wall), n / (cpu.total() - start)


async def bare(steps: int, slots: int) -> tuple[list[float], tuple[float, float]]:
    """The environment without a pool."""
    async with Browser.launch() as browser:
        env = await browser.new_env()
        await drive(env, 20)
        times = await drive(env, steps)
        envs: list[Env] = [env, *[await browser.new_env() for _ in range(slots - 1)]]
        return times, await together(envs, steps)


async def pooled(url: str, token: str, steps: int, slots: int) -> tuple[list[float], tuple[float, float]]:
    """The same through the pool."""
    async with PoolClient(url, token) as client, contextlib.AsyncExitStack() as stack:
        envs: list[Env] = [await stack.enter_async_context(client.env("bench")) for _ in range(slots)]
        await drive(envs[0], 20)
        times = await drive(envs[0], steps)
        return times, await together(envs, steps)


async def overhead(url: str, token: str, steps: int) -> tuple[list[float], list[float]]:
    """Steps of an environment that does nothing: our client, then httpx."""
    async with PoolClient(url, token) as client:
        lease = await client.allocate("bench")
        env = RemoteEnv(client, lease)
        await drive(env, 20)
        ours = await drive(env, steps)
        theirs = []
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as other:
            for i in range(steps):
                body = {"lease": lease.lease, "token": lease.token, "request_id": f"httpx-{i}"}
                start = time.perf_counter()
                reply = await other.post(f"{url}/v1/evaluate", content=orjson.dumps(body))
                theirs.append(time.perf_counter() - start)
                reply.raise_for_status()
    return ours, theirs


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(description="Cost of the env pool against the bare environment.")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--slots", type=int, default=8)
    p.add_argument("--overhead", action="store_true", help="only the environment that does nothing (no browser)")
    a = p.parse_args()
    with env_pool(EnvParams(slots=1), provider="noop") as (url, token):
        ours, theirs = asyncio.run(overhead(url, token, a.steps))
    print(f"load average {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    line("pool overhead (environment that does nothing)", ours)
    line("the same with httpx", theirs)
    if a.overhead:
        return
    bare_one, bare_many = asyncio.run(bare(a.steps, a.slots))
    with env_pool(EnvParams(slots=a.slots)) as (url, token):
        pool_one, pool_many = asyncio.run(pooled(url, token, a.steps, a.slots))
    line("one screen, bare", bare_one)
    line("one screen, through the pool", pool_one)
    for name, (wall, cpu) in (("bare", bare_many), ("through the pool", pool_many)):
        label = f"{a.slots} screens, {name}"
        print(f"{label:46s} {wall:7.1f} steps/s by wall clock, {cpu:7.1f} steps per CPU second")
    by_cpu, by_wall = pool_many[1] / bare_many[1], pool_many[0] / bare_many[0]
    print(f"ratio pool / bare: {by_cpu:.2f} by CPU, {by_wall:.2f} by wall clock")


if __name__ == "__main__":
    main()
