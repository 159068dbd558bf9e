"""What the pool costs under load, beside a pool with one lock (peers/pool_one_lock.py); its environments do nothing.

    python benchmarks/pool_load.py [--slots 1 16 64 256] [--seconds 8] [--think 0.5] [--json FILE]

Each of `slots` screens plays episodes of allocate, reset, eight steps, close. Two loads:

paced: a screen thinks `--think` seconds before each step, as models and real screens do. The step's p50 and p99 are
    the pool's overhead (the bare environment's step, printed too, takes microseconds). 64 screens and 0.5 s: 128/s.
flat out: no thinking; steps/s is what one server process carries. Latency here is the queue's and no overhead.

Client and server share this computer's cores. Both sides are driven by the same small HTTP client. "cpu" is CPU
milliseconds of the server process per step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil

from guiderail.actions.types import Click
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.http import Http, TransportError
from guiderail.pool.providers.noop import NoopEnv
from guiderail.services import service
from guiderail.tasks.types import TaskSpec

STEPS = 8
TOKEN = "benchmark-token-0123"
Times = dict[str, list[float]]


class Ours:
    """Our server through our client."""

    def __init__(self, url: str) -> None:
        self.client = PoolClient(url, TOKEN)

    @contextlib.asynccontextmanager
    async def episode(self, n: int, times: Times) -> AsyncIterator[Any]:
        """A leased, reset screen; yields its step."""
        start = time.perf_counter()
        env = RemoteEnv(self.client, await self.client.allocate(f"load-{n}", 120.0))
        times["allocate"].append(time.perf_counter() - start)
        try:
            await env.reset(TaskSpec("noop", "count", n))
            yield lambda: env.step(Click(0.5, 0.5))
        finally:
            start = time.perf_counter()
            await env.close()
            times["close"].append(time.perf_counter() - start)


class OneLock:
    """The other design through the same HTTP client."""

    def __init__(self, url: str) -> None:
        self.http = Http(url, {})

    async def post(self, route: str, **fields: Any) -> dict[str, Any]:
        """JSON there and back."""
        status, body = await self.http.request("POST", route, json.dumps(fields).encode(), 600.0)
        assert status == 200, body
        return dict(json.loads(body))

    @contextlib.asynccontextmanager
    async def episode(self, n: int, times: Times) -> AsyncIterator[Any]:
        """A leased, reset screen; yields its step."""
        start = time.perf_counter()
        lease = (await self.post("/allocate", episode_id=f"e{n}"))["lease_id"]
        times["allocate"].append(time.perf_counter() - start)
        try:
            await self.post("/reset", lease_id=lease, task_config={})
            action = "pyautogui.click(4, 4)"
            yield lambda: self.post("/step", lease_id=lease, action=action, sleep_after_execution=0.0)
        finally:
            start = time.perf_counter()
            await self.post("/close", lease_id=lease)
            times["close"].append(time.perf_counter() - start)


async def drive(side: Ours | OneLock, slots: int, seconds: float, think: float) -> tuple[Times, float]:
    """Times of all calls and steps/s over `seconds`, from when every screen has done a step; "all": every step."""
    times: Times = defaultdict(list)
    numbers = itertools.count()
    measuring = asyncio.Event()
    stop, begun = False, set()

    async def screen(k: int) -> None:
        rng = random.Random(k)
        while not stop:
            mine: Times = defaultdict(list)
            async with side.episode(next(numbers), mine) as step:
                for _ in range(STEPS):
                    if think:
                        await asyncio.sleep(think * rng.uniform(0.5, 1.5))
                    start = time.perf_counter()
                    await step()
                    begun.add(k)
                    times["all"].append(0.0)
                    if measuring.is_set() and not stop:
                        times["step"].append(time.perf_counter() - start)
                    if stop:
                        break
            if measuring.is_set():
                for kind, values in mine.items():
                    times[kind] += values

    tasks = [asyncio.create_task(screen(k)) for k in range(slots)]
    while len(begun) < slots:
        await asyncio.sleep(0.05)
    measuring.set()
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    stop = True
    rate = len(times["step"]) / (time.perf_counter() - started)
    await asyncio.gather(*tasks)
    return times, rate


@contextlib.contextmanager
def server(which: str, slots: int) -> Iterator[tuple[str, psutil.Process]]:
    """A server with all slots ready."""
    if which == "ours":
        cmd = [sys.executable, "-m", "guiderail.pool.server", "--port", "{port}", "--provider", "noop"]
        cmd += ["--slots", str(slots), "--gui-rl", "off"]
    else:
        cmd = [sys.executable, str(Path(__file__).parent / "peers/pool_one_lock.py"), "--port", "{port}"]
        cmd += ["--max-envs", str(slots), "--prewarm", str(slots)]
    ready, env = "http://127.0.0.1:{port}/healthz", {"GUIDERAIL_POOL_TOKEN": TOKEN}
    with service(cmd, f"load-{which.replace(' ', '-')}", ready_url=ready, timeout=120.0, env=env) as s:
        yield s.url, psutil.Process(s.pid)


def percentile(times: list[float], q: float) -> float:
    """Milliseconds; nan without data."""
    return sorted(times)[min(len(times) - 1, int(q * len(times)))] * 1000 if times else float("nan")


async def bare(steps: int = 2000) -> list[float]:
    """The environment without a pool."""
    env, times = NoopEnv(), []
    await env.reset(TaskSpec("noop", "count", 1))
    for _ in range(steps):
        start = time.perf_counter()
        await env.step(Click(0.5, 0.5))
        times.append(time.perf_counter() - start)
    return times


def measure(which: str, slots: int, seconds: float, think: float) -> dict[str, Any]:
    """One row."""
    with server(which, slots) as (url, process):
        before = process.cpu_times()

        async def run() -> tuple[Times, float]:
            side = Ours(url) if which == "ours" else OneLock(url)
            return await drive(side, slots, seconds, think)

        times, rate = asyncio.run(run())
        after = process.cpu_times()
    cpu = (after.user + after.system - before.user - before.system) / len(times["all"]) * 1000
    row: dict[str, Any] = {"side": which, "load": "paced" if think else "flat out", "slots": slots, "steps_per_s": rate}
    row["cpu_ms"] = cpu
    for kind in ("step", "allocate", "close"):
        row[f"{kind}_p50_ms"], row[f"{kind}_p99_ms"] = percentile(times[kind], 0.5), percentile(times[kind], 0.99)
    return row


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(description="The env pool under load, beside a pool with one lock.")
    p.add_argument("--slots", type=int, nargs="+", default=[1, 16, 64, 256])
    p.add_argument("--seconds", type=float, default=8.0)
    p.add_argument("--think", type=float, default=0.5)
    p.add_argument("--json", default="", metavar="FILE")
    a = p.parse_args()
    base = asyncio.run(bare())
    print(f"bare step p50 {percentile(base, 0.5):.3f} ms p99 {percentile(base, 0.99):.3f} ms")
    print(f"load average {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    head = f"{'load':8s} {'slots':>5s} {'side':8s} {'steps/s':>8s} {'cpu ms':>7s}"
    print(head + "".join(f" {k:>17s}" for k in ("step p50/p99 ms", "allocate", "close")))
    rows = []
    for think in (a.think, 0.0):
        for slots in a.slots:
            for which in ("ours", "one lock"):
                try:
                    r = measure(which, slots, a.seconds, think)
                except TransportError as e:  # a server that turns connections away has no latency to print
                    kind = "paced" if think else "flat out"
                    print(f"{kind:8s} {slots:5d} {which:8s} failed: {e}", flush=True)
                    rows.append({"side": which, "load": kind, "slots": slots, "failed": str(e)})
                    continue
                rows.append(r)
                line = f"{r['load']:8s} {slots:5d} {which:8s} {r['steps_per_s']:8.1f} {r['cpu_ms']:7.2f}"
                cells = (f"{r[f'{k}_p50_ms']:.2f} / {r[f'{k}_p99_ms']:.2f}" for k in ("step", "allocate", "close"))
                print(line + "".join(f" {c:>17s}" for c in cells), flush=True)
    print(f"load average {psutil.getloadavg()[0]:.1f}")
    if a.json:
        Path(a.json).write_text(json.dumps({"bare_p50_ms": percentile(base, 0.5), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
