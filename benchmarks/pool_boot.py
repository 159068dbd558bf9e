"""Steps while machines boot: eight screens step, eight more are asked for and take `--boot-s` seconds each to come up.

    python benchmarks/pool_boot.py [--boot-s 30] [--screens 8] [--boots 8]

Prints, for our pool and for a pool with one lock (peers/pool_one_lock.py), the steps done in the `--boot-s` seconds
before the boots and in those during the boots, their p50 and p99, and the longest silence of any screen.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pool_load import TOKEN, OneLock, Ours, percentile

from guiderail.services import service

PACE_S = 0.25


async def watch(side: Any, screens: int, boots: int, boot_s: float) -> list[tuple[list[float], float]]:
    """(seconds of each step, longest time that any screen went without one) before and during the boots."""
    done: list[list[tuple[float, float]]] = [[] for _ in range(screens)]  # per screen: when, how long
    stop = asyncio.Event()

    async def screen(k: int) -> None:
        async with side.episode(k, defaultdict(list)) as step:
            while not stop.is_set():
                await asyncio.sleep(PACE_S)
                start = time.perf_counter()
                await step()
                done[k].append((time.perf_counter(), time.perf_counter() - start))

    async def more(k: int) -> None:
        async with side.episode(1000 + k, defaultdict(list)):
            await stop.wait()

    tasks = [asyncio.create_task(screen(k)) for k in range(screens)]
    while not all(done):
        await asyncio.sleep(0.05)
    edges = [time.perf_counter()]
    await asyncio.sleep(boot_s)
    edges.append(time.perf_counter())
    tasks += [asyncio.create_task(more(k)) for k in range(boots)]
    await asyncio.sleep(boot_s)
    edges.append(time.perf_counter())
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=1.0)
    found = []
    for a, b in itertools.pairwise(edges):
        inside = [[(t, s) for t, s in one if a <= t < b] for one in done]
        gaps = [y - x for one in inside for x, y in itertools.pairwise([a, *(t for t, _ in one), b])]
        found.append(([s for one in inside for _, s in one], max(gaps)))
    return found


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(description="Steps of some machines while others boot.")
    p.add_argument("--boot-s", type=float, default=30.0)
    p.add_argument("--screens", type=int, default=8)
    p.add_argument("--boots", type=int, default=8)
    a = p.parse_args()
    total = str(a.screens + a.boots)
    peer = str(Path(__file__).parent / "peers/pool_one_lock.py")
    sides = {
        "ours": (
            f"{sys.executable} -m guiderail.pool.server --provider noop --slots {total} --prewarm {a.screens} "
            f"--max-boots {a.boots} --boot-s {a.boot_s} --port {{port}}",
            Ours,
        ),
        "one lock": (
            f"{sys.executable} {peer} --max-envs {total} --prewarm {a.screens} --boot-s {a.boot_s} --port {{port}}",
            OneLock,
        ),
    }
    print(f"{a.screens} screens step every {PACE_S:g} s; {a.boots} machines boot for {a.boot_s:g} s each")
    for name, (cmd, side) in sides.items():
        ready, env = "http://127.0.0.1:{port}/healthz", {"GUIDERAIL_POOL_TOKEN": TOKEN}
        with service(cmd.split(), "boot", ready_url=ready, timeout=a.boot_s * 2 + 60, env=env, grace=2.0) as s:

            async def run(url: str = s.url, make: Any = side) -> list[tuple[list[float], float]]:
                return await watch(make(url), a.screens, a.boots, a.boot_s)

            for when, (times, silence) in zip(("before", "during"), asyncio.run(run()), strict=True):
                print(
                    f"{name:9s} {when} the boots: {len(times):5d} steps, p50 {percentile(times, 0.5):8.2f} ms, "
                    f"p99 {percentile(times, 0.99):8.2f} ms, longest silence {silence * 1000:9.1f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
