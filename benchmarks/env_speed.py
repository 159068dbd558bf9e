"""Speed of the browser environment by itself: steps per second, by the clock and by CPU time of the whole process tree.

    python benchmarks/env_speed.py [--pages 4] [--seconds 10] [--browser PATH] [--json FILE]

One browser with `--pages` pages, each playing short episodes over a mix of templates with seeded random actions (clicks
and typing), a reset every five steps and a new template every four episodes. CPU time is the figure to compare: it does
not depend on what else the machine does. "steps/s per core" = steps / CPU seconds, this process included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path

import psutil

from guiderail.actions.types import Action, Click, Type
from guiderail.envs.browser import Browser, BrowserEnv
from guiderail.tasks.types import TaskSpec

MIX = (
    "click-test-2",
    "click-button",
    "click-checkboxes",
    "click-tab",
    "enter-text",
    "login-user",
    "click-dialog",
    "count-shape",
)
STEPS_PER_EPISODE = 5
EPISODES_PER_TEMPLATE = 4


def draw(rng: random.Random) -> Action:
    """One action: mostly clicks."""
    return Type("abc") if rng.random() < 0.2 else Click(rng.random(), rng.uniform(0.22, 1.0))


async def play(env: BrowserEnv, seed: int, until: float) -> tuple[int, int]:
    """Play until the clock says stop; returns (steps, resets)."""
    rng = random.Random(seed)
    steps = resets = 0
    while time.perf_counter() < until:
        template = rng.choice(MIX)
        for _ in range(EPISODES_PER_TEMPLATE):
            await env.reset(TaskSpec("miniwob", template, rng.randrange(10_000)))
            resets += 1
            for _ in range(STEPS_PER_EPISODE):
                await env.step(draw(rng))
                steps += 1
            if time.perf_counter() >= until:
                break
    return steps, resets


def tree(me: psutil.Process) -> tuple[float, float]:
    """(CPU seconds, PSS in MiB) of this process and all below it, living children counted."""
    cpu = memory = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
            cpu += times.user + times.system
            memory += process.memory_full_info().pss / 2**20
        except psutil.NoSuchProcess:
            continue
    return cpu, memory


async def measure(pages: int, seconds: float, browser_path: str) -> dict[str, float | int | str]:
    """Run and count."""
    me = psutil.Process()
    async with Browser.launch(browser_path or None) as browser:
        envs = [await browser.new_env() for _ in range(pages)]
        await asyncio.gather(*(env.reset(TaskSpec("miniwob", MIX[0], 0)) for env in envs))
        cpu, began = tree(me)[0], time.perf_counter()
        played = await asyncio.gather(*(play(env, i, began + seconds) for i, env in enumerate(envs)))
        wall = time.perf_counter() - began
        after, memory = tree(me)
        steps, resets = (sum(p[i] for p in played) for i in (0, 1))
        return {
            "browser": browser.found.version,
            "pages": pages,
            "steps": steps,
            "resets": resets,
            "wall_s": round(wall, 2),
            "cpu_s": round(after - cpu, 2),
            "steps_per_s": round(steps / wall, 1),
            "steps_per_s_per_core": round(steps / (after - cpu), 1),
            "cpu_ms_per_step": round(1000 * (after - cpu) / steps, 2),
            "pss_mib": round(memory),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--browser", default="", help="path of a browser; empty = find one")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    figures = asyncio.run(measure(args.pages, args.seconds, args.browser))
    for key, value in figures.items():
        print(f"{key:>22}  {value}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
