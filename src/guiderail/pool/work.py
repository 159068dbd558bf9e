"""Do a list of jobs on the pool's screens, several at a time.

Guarantees: results come in the order of the jobs, whatever the order they ended in; a job that meets an infrastructure
error starts again from its beginning on another screen, at most `retries` times, then the error is raised; any other
error ends the whole map at once. A worker keeps its lease from job to job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from guiderail.envs.types import InfraError
from guiderail.pool.client import PoolClient, RemoteEnv

log = logging.getLogger("guiderail.pool.work")
J = TypeVar("J")
R = TypeVar("R")


async def map_pool(
    client: PoolClient,
    jobs: Sequence[J],
    do: Callable[[RemoteEnv, J], Awaitable[R]],
    *,
    workers: int,
    retries: int,
    holder: str,
    done: Callable[[R], None] = lambda result: None,
) -> list[R]:
    """[await do(env, job) for job in jobs], `workers` at a time; `done` is called as results come."""
    queue = list(enumerate(jobs))[::-1]
    results: dict[int, R] = {}

    async def worker(number: int) -> None:
        env: RemoteEnv | None = None
        try:
            while queue:
                index, job = queue.pop()
                for attempt in range(retries + 1):
                    try:
                        if env is None:
                            env = RemoteEnv(client, await client.allocate(f"{holder}-{number}", 120.0))
                        results[index] = await do(env, job)
                        break
                    except InfraError as e:
                        log.warning("%s: %s (%s), attempt %d of %d", job, e, e.cause, attempt + 1, retries + 1)
                        if attempt == retries:
                            raise
                        if env is not None:
                            await env.close()
                            env = None
                done(results[index])
        finally:
            if env is not None:
                await env.close()

    tasks = [asyncio.create_task(worker(n)) for n in range(min(workers, len(jobs)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [results[i] for i in range(len(jobs))]
