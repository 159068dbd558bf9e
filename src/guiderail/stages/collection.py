"""Open the producer of a phase of rl: rollout workers beside the trainer, as `rl.collection` asks.

Guarantees: with engine.kind hf each worker is a process with a copy of the weights of its own, with vllm a thread that
asks the server; leaving the block ends them. The schedule of every phase ends up in `schedule_file`, whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from guiderail.params_train import Rl
from guiderail.pool.wire import TOKEN_ENV
from guiderail.rollout.producer import Producer
from guiderail.rollout.schedule import Schedule, read_schedule
from guiderail.rollout.versions import Versions
from guiderail.rollout.wave import Order, Wave
from guiderail.rollout.workers import ProcessWorker, ThreadWorker, Worker
from guiderail.stages.context import StageContext
from guiderail.stages.rollouts import PoolRollouts, ReplayRollouts, Rollouts
from guiderail.train.sampler import VllmSampler
from guiderail.train.start import Start


@contextmanager
def opened_producer(
    ctx: StageContext, rl: Rl, rollouts: PoolRollouts | ReplayRollouts, opened: Start, phase: int, work: Path
) -> Iterator[Producer]:
    """Workers that play what `rollouts` would. phase: its number in the recipe; work: its attempt folder."""
    c, slots = rl.collection, ctx.params.env.slots
    head = {"phase": phase, "seed": ctx.seed, "groups": rl.groups, "group_size": rl.group_size}
    head |= {"rounds": max(1, rl.filter_rounds)}
    with Producer(
        worker_maker(ctx, rollouts, opened, phase, work / "workers"),
        workers=c.workers,
        slots=slots,
        iterations=rl.iterations,
        max_staleness=c.max_staleness,
        restarts=c.restarts,
        versions=Versions(work / "versions"),
        schedule=Schedule(work / "schedule.jsonl", head),
        replay=read_schedule(Path(c.replay), phase, head) if c.replay else None,
        on_wave=lambda wave, iteration, round: adopt(rollouts, wave, iteration, round),
    ) as producer:
        yield producer


def adopt(rollouts: Rollouts, wave: Wave, iteration: int, round: int) -> None:
    """Take a wave as if it had been played here: its features, and its records in their place."""
    rollouts.policy.features.adopt(wave.vision, wave.features)
    rollouts.record(wave.episodes, wave.frames, iteration, round)


def worker_maker(
    ctx: StageContext, rollouts: PoolRollouts | ReplayRollouts, opened: Start, phase: int, folder: Path
) -> Callable[[int], Worker]:
    """What starts worker number k."""
    sampler = rollouts.sampler
    if isinstance(sampler, VllmSampler):
        versions = Versions(folder.parent / "versions")

        def play(order: Order, check: Callable[[], None]) -> Wave:
            at = replace(sampler, weights=versions.get(order.version))
            return replace(rollouts, sampler=at).wave(order, check)

        return lambda k: ThreadWorker(play, f"rollout worker {k}")
    url, token = rollouts.pool if isinstance(rollouts, PoolRollouts) else ("", "")
    told = {
        "params": ctx.params.model_dump(mode="json"),
        "axes": ctx.axes,
        "phase": phase,
        "first": [rollouts.first, rollouts.parts],
        "start": str(opened.start),
        "work": str(ctx.work),
        "pool": url,
    }

    def make(k: int) -> Worker:
        spec = folder / f"worker{k}.json"
        folder.mkdir(parents=True, exist_ok=True)
        spec.write_text(json.dumps(told))
        command = [sys.executable, "-m", "guiderail.stages.rollout_worker", str(spec), str(folder / f"worker{k}")]
        return ProcessWorker(command, folder / f"worker{k}", f"rollout worker {k}", {TOKEN_ENV: token} if url else {})

    return make


def join_schedules(files: list[Path], out: Path) -> None:
    """One file of the schedules of all phases that have one."""
    there = [f.read_text() for f in files if f.exists()]
    if there:
        out.write_text("".join(there))
