"""guiderail's own environment on the tasks of `loop.py`; prints JSON.

    python run_guiderail.py [--pool] [--pages 1] [--seconds 30] [--episode 5] [--browser PATH]

Without --pool: `BrowserEnv` in this process. With it: the env pool's server in a process of its own, over HTTP. Each
PNG is decoded to an array here, since the other sides hand out arrays.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import io
import time
from collections.abc import Sequence

import loop
import numpy as np
from PIL import Image

from guiderail.actions.types import Click
from guiderail.envs.browser import Browser
from guiderail.envs.types import Env, StepResult
from guiderail.params import Env as EnvParams
from guiderail.pool.client import PoolClient
from guiderail.pool.local import env_pool
from guiderail.tasks.types import TaskSpec


def look(result: StepResult, tally: loop.Tally) -> None:
    """Decode the picture."""
    picture = np.array(Image.open(io.BytesIO(result.observation.png)).convert("RGB"))
    tally.picture = (picture.shape[1], picture.shape[0])


async def play(env: Env, page: int, name: str, tally: loop.Tally, episode: int, seconds: float) -> None:
    """`loop.play`, as a coroutine."""
    x, y = loop.WORK[name]
    until, source = time.perf_counter() + seconds, loop.seeds(page)
    while True:
        began = time.perf_counter()
        result = await env.reset(TaskSpec("miniwob", name, next(source)))
        look(result, tally)
        tally.reset_times.append(time.perf_counter() - began)
        tally.resets += 1
        click = Click((x + 0.5) / result.observation.width, (y + 0.5) / result.observation.height)
        for _ in range(episode):
            began = time.perf_counter()
            result = await env.step(click)
            look(result, tally)
            tally.step_times.append(time.perf_counter() - began)
            tally.steps += 1
            if result.done:
                tally.ended += 1
                break
        if time.perf_counter() >= until:
            return


async def measure(envs: Sequence[Env], tally: loop.Tally, episode: int, seconds: float) -> None:
    """All templates, all pages at a time."""
    for name in loop.WORK:
        await asyncio.gather(*(play(env, i, name, loop.Tally(), 1, 0.0) for i, env in enumerate(envs)))
        stop = loop.clock(tally)
        share = seconds / len(loop.WORK)
        await asyncio.gather(*(play(env, i, name, tally, episode, share) for i, env in enumerate(envs)))
        stop()


async def bare(pages: int, browser_path: str, tally: loop.Tally, episode: int, seconds: float) -> None:
    """The environment by itself."""
    async with Browser.launch(browser_path or None) as browser:
        await measure([await browser.new_env() for _ in range(pages)], tally, episode, seconds)


async def pooled(url: str, token: str, pages: int, tally: loop.Tally, episode: int, seconds: float) -> None:
    """The environment through the pool."""
    async with PoolClient(url, token) as client, contextlib.AsyncExitStack() as stack:
        envs = [await stack.enter_async_context(client.env("bench")) for _ in range(pages)]
        await measure(envs, tally, episode, seconds)


def main() -> None:
    parser = loop.arguments(__doc__)
    parser.add_argument("--pool", action="store_true")
    parser.add_argument("--pages", type=int, default=1)
    args = parser.parse_args()
    loop.adopt_orphans()
    tally = loop.Tally()
    if args.pool:
        with env_pool(EnvParams(slots=args.pages, browser=args.browser)) as (url, token):
            asyncio.run(pooled(url, token, args.pages, tally, args.episode, args.seconds))
    else:
        asyncio.run(bare(args.pages, args.browser, tally, args.episode, args.seconds))
    name = "guiderail, pool over HTTP" if args.pool else "guiderail, BrowserEnv"
    version = f"guiderail {importlib.metadata.version('guiderail')}"
    loop.report(tally.figures(name=name, version=version, pages=args.pages))


if __name__ == "__main__":
    main()
