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
from guiderail.pool.client import NoSlotError, PoolClient, RemoteEnv

log = logging.getLogger("guiderail.pool.work")
J = TypeVar("J")
R = TypeVar("R")
WAIT_S = 60.0


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
    failures = [0] * len(jobs)
    screens = 0  # held by all workers

    async def worker(number: int) -> None:
        nonlocal screens
        while queue:
            try:
                name = f"{holder}-{number}"
                env = RemoteEnv(client, await client.allocate(name, WAIT_S), name)
            except NoSlotError:
                if screens == 0:
                    raise
                continue  # the pool is smaller than we are many; the others get on
            screens += 1
            try:
                await run_jobs(env)
            finally:
                screens -= 1
                await env.close()

    async def run_jobs(env: RemoteEnv) -> None:
        """Jobs until none is left or the screen fails; a failed job goes back to the queue."""
        while queue:
            index, job = queue.pop()
            try:
                results[index] = await do(env, job)
            except InfraError as e:
                failures[index] += 1
                log.warning("%s: %s (%s), attempt %d of %d", job, e, e.cause, failures[index], retries + 1)
                if failures[index] > retries:
                    raise
                queue.append((index, job))
                return
            done(results[index])

    tasks = [asyncio.create_task(worker(n)) for n in range(min(workers, len(jobs)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [results[i] for i in range(len(jobs))]
