"""Collect episodes: many screens in parallel, one engine, two half-waves that alternate between them.

Guarantees: while the engine generates for one half (in its own thread), the screens of the other half work. Inside a
half, one batch holds one request of every episode in play, sorted by order of the tasks; so which requests share a
batch depends on tasks and tokens only, never on timing (infra errors excepted). Siblings stay in one half; a screen
stays on a template while it can, since loading a page is the dearest thing a screen does. Every attempt is returned:
an infra or judge error as such, without reward, followed by its re-sample.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from guiderail.actions.codec import Codec
from guiderail.envs.types import Env, InfraError
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import Prompt
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.rollout.engines.base import Engine
from guiderail.rollout.episode import Ask, Exampler, Job, PngSink, Setting, run_episode
from guiderail.rollout.judging import Judge
from guiderail.rollout.types import Completion, Episode, SamplingParams
from guiderail.tasks.types import TaskSpec

Connect = Callable[[], Awaitable[Env]]
Progress = Callable[[int, int], None]
Play = Callable[[Ask, Env, Job, PromptBuilder, Codec, PngSink, Setting, "Judge | None"], Awaitable[Episode]]
"""The loop of one episode (`episode.run_episode`)."""
_Request = tuple[Job, Prompt, SamplingParams, asyncio.Future[tuple[Completion, float]]]


@dataclass
class CollectStats:
    """What a collection cost. `env_steps`, `tokens` (sampled) and `prompt_tokens` count all attempts; `seconds` is
    wall time,
    `seconds_policy` of it inside the engine; `errors` counts infra and judge errors by cause."""

    episodes: int = 0
    env_steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    seconds_policy: float = 0.0
    batches: int = 0
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class _Half:
    """Requests of one half-wave; a batch leaves when every one of its `members` waits."""

    engine: Engine
    thread: ThreadPoolExecutor
    stats: CollectStats
    members: int
    waiting: list[tuple[Job, Prompt, SamplingParams, asyncio.Future[tuple[Completion, float]]]] = field(
        default_factory=list
    )
    running: asyncio.Task[None] | None = None

    async def ask(self, job: Job, prompt: Prompt, sampling: SamplingParams) -> tuple[Completion, float]:
        """Wait for the half's batch; gives the completion and its share of the engine's seconds."""
        answer: asyncio.Future[tuple[Completion, float]] = asyncio.get_running_loop().create_future()
        self.waiting.append((job, prompt, sampling, answer))
        self._go_when_complete()
        return await answer

    def leave(self) -> None:
        """A member has nothing left to play."""
        self.members -= 1
        self._go_when_complete()

    def _go_when_complete(self) -> None:
        if self.waiting and len(self.waiting) == self.members:
            batch, self.waiting = sorted(self.waiting, key=lambda w: w[0].order), []
            self.running = asyncio.create_task(self._run(batch))

    async def _run(self, batch: list[_Request]) -> None:
        try:
            _, prompts, sampling, _ = zip(*batch, strict=True)
            completions, seconds = await asyncio.get_running_loop().run_in_executor(
                self.thread, _timed, self.engine, prompts, sampling
            )
        except Exception as e:
            for *_, answer in batch:
                if not answer.done():
                    answer.set_exception(e)
            return
        self.stats.seconds_policy += seconds
        self.stats.batches += 1
        self.stats.prompt_tokens += sum(len(p.ids) for p in prompts)
        for (*_, answer), completion in zip(batch, completions, strict=True):
            self.stats.tokens += len(completion.ids)
            if not answer.done():  # done = cancelled, because another episode failed for good
                answer.set_result((completion, seconds / len(batch)))


def _timed(
    engine: Engine, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]
) -> tuple[list[Completion], float]:
    started = time.perf_counter()
    return engine.generate(prompts, sampling), time.perf_counter() - started


async def collect_async(
    engine: Engine,
    connect: Connect,
    tasks: Sequence[tuple[TaskSpec, int]],
    builder: PromptBuilder,
    codec: Codec | None = None,
    *,
    frames: PngSink,
    temperature: float,
    run_seed: int,
    policy_version: int,
    max_infra_retries: int,
    slots: int = 16,
    progress: Progress | None = None,
    play: Play = run_episode,
    judge: Judge | None = None,
    example: Exampler | None = None,
) -> tuple[list[Episode], CollectStats]:
    """Play every (task, sibling) once, measured, if it can be had in 1 + `max_infra_retries` attempts.

    connect: gives a fresh environment per call; at most `slots` are open at once, a new one after every infra error.
    codec: default the builder's. play: the loop of one episode. judge: judges its steps meanwhile. example: chooses
    what is shown before each task. progress(done, total) is called after every finished task. Returns all attempts, in
    order of the tasks and attempts, and what they cost. Raises ValueError on a (task, sibling) listed twice, whatever
    the engine raises, and InfraError when no environment can be had in 1 + `max_infra_retries` tries.
    """
    jobs = [Job(i, task, sibling) for i, (task, sibling) in enumerate(tasks)]
    twice = [key for key, n in Counter((j.task.id, j.sibling) for j in jobs).items() if n > 1]
    if twice:
        raise ValueError(f"listed twice: {twice[0]} (of {len(twice)}); give siblings of a task different numbers")
    started, stats, setting = (
        time.perf_counter(),
        CollectStats(),
        Setting(temperature, run_seed, policy_version, example),
    )
    episodes: list[tuple[int, Episode]] = []
    finished = 0

    async def attempts(env: Env | None, job: Job, half: _Half) -> Env | None:
        """Play a job until it is measured or its attempts are spent; returns the environment to go on with."""
        nonlocal finished
        for attempt in range(1 + max_infra_retries):
            env = env or await _connected(connect, max_infra_retries)
            try:
                this = replace(job, attempt=attempt)
                episode = await play(half.ask, env, this, builder, codec or builder.codec, frames, setting, judge)
            except BaseException:
                await env.close()
                raise
            episodes.append((job.order, episode))
            if episode.outcome.kind in ("success", "failure"):
                break
            stats.errors[episode.outcome.cause] = stats.errors.get(episode.outcome.cause, 0) + 1
            if episode.outcome.kind == "infra_error":
                await env.close()
                env = None
        finished += 1
        if progress is not None:
            progress(finished, len(jobs))
        return env

    async def lane(queue: deque[Job], half: _Half) -> None:
        """One screen: plays job after job of its half, of the template it has loaded while there are any."""
        env: Env | None = None
        template = ""
        try:
            while queue:
                job = take(queue, template)
                template = job.task.template
                env = await attempts(env, job, half)
        finally:
            if env is not None:
                await env.close()
        half.leave()

    with ThreadPoolExecutor(1, "engine") as thread:
        lanes: list[Coroutine[None, None, None]] = []
        queues = [spread(q) for q in split_groups(jobs, 2 if slots > 1 else 1) if q]
        for i, queue in enumerate(queues):
            members = min((slots + i) // len(queues), len(queue))
            half = _Half(engine, thread, stats, members)
            lanes += [lane(queue, half) for _ in range(members)]
        await _all(lanes)
    ordered = [e for _, e in sorted(episodes, key=lambda x: (x[0], x[1].attempt))]
    stats.episodes, stats.env_steps = len(ordered), sum(len(e.steps) for e in ordered)
    stats.seconds = time.perf_counter() - started
    return ordered, stats


def split_groups(jobs: Iterable[Job], halves: int) -> list[deque[Job]]:
    """Deal jobs to `halves` queues, all siblings of a task to one, each new task to the shortest queue (the first of
    equals)."""
    queues = [deque[Job]() for _ in range(halves)]
    home: dict[str, deque[Job]] = {}
    for job in jobs:
        home.setdefault(job.task.id, min(queues, key=len)).append(job)
    return queues


def spread(queue: Iterable[Job]) -> deque[Job]:
    """The same jobs, templates in turn: the first jobs of all templates, then the second ones, and so on.

    So screens start on different templates, and `take` keeps each on its own: loading a page costs far more than
    starting its next episode.
    """
    seen: Counter[str] = Counter()
    rank: list[tuple[int, Job]] = []
    for job in queue:
        rank.append((seen[job.task.template], job))
        seen[job.task.template] += 1
    return deque(job for _, job in sorted(rank, key=lambda r: r[0]))


def take(queue: deque[Job], template: str) -> Job:
    """Remove and give the first job of `template`, else the first of all."""
    index = next((i for i, job in enumerate(queue) if job.task.template == template), 0)
    job = queue[index]
    del queue[index]
    return job


async def _connected(connect: Connect, retries: int) -> Env:
    """An environment, in 1 + `retries` tries. Raises the last InfraError."""
    for attempt in range(retries + 1):
        try:
            return await connect()
        except InfraError:
            if attempt == retries:
                raise
            await asyncio.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")


async def _all(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Run coroutines together; the first failure cancels the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for w in work:
                group.create_task(w)
    except BaseExceptionGroup as e:
        raise e.exceptions[0] from None


def collect(
    engine: Engine,
    connect: Connect | tuple[str, str],
    tasks: Sequence[tuple[TaskSpec, int]],
    builder: PromptBuilder,
    codec: Codec | None = None,
    **options: Any,
) -> tuple[list[Episode], CollectStats]:
    """`collect_async` for callers without an event loop. connect: an async factory, or (url, token) of an env pool."""

    async def go() -> tuple[list[Episode], CollectStats]:
        if not isinstance(connect, tuple):
            return await collect_async(engine, connect, tasks, builder, codec, **options)
        async with PoolClient(*connect) as client:
            return await collect_async(engine, pool_connect(client), tasks, builder, codec, **options)

    return asyncio.run(go())


def pool_connect(client: PoolClient, holder: str = "rollout", timeout_s: float = 60.0) -> Connect:
    """A factory of leased environments for `collect_async`."""

    async def connect() -> Env:
        return RemoteEnv(client, await client.allocate(holder, timeout_s), holder)

    return connect
