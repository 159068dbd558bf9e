"""Asynchronous against synchronous collection: seconds per iteration and who waits for whom.

    python benchmarks/async_collection.py [--iterations 8] [--warmup 2] [--rounds 2] [--workers 1] [--staleness 1]
        [--groups N] [--group-size N] [--slots N] [--start results/sft/seed0/checkpoint]

Runs the `rl` stage's own loop on params.yaml's default in real pages through a pool: in turn with `collection: sync`
and with a worker process (`collection: async`), from the same start, `rounds` times each in alternation. The first
`warmup` iterations of each run (start of the worker, first pages) are left out. Prints per kind the median seconds of
an iteration, the share of them in which the trainer, the engine and the screens did nothing, the CPU seconds of all
processes per iteration, and the ratio async / sync. Needs results/provision (`guiderail provision`); starts from the
warm-up's checkpoint where there is one, else from the base model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from guiderail.params import Params, load, parse
from guiderail.pool.local import env_pool
from guiderail.rollout.types import Episode
from guiderail.stages.collection import opened_producer
from guiderail.stages.context import StageContext
from guiderail.stages.judging import no_judge
from guiderail.stages.meter import tree_cpu
from guiderail.stages.paths import tasks_json
from guiderail.stages.rollouts import PoolRollouts
from guiderail.tasks.splits import load_manifest
from guiderail.tracking import Tracker
from guiderail.train import rl as loop
from guiderail.train.sampler import HfSampler
from guiderail.train.start import open_start

Row = dict[str, float]


class Timed(PoolRollouts):
    """Keeps what each collection cost."""

    def collect(self, tasks, iteration, round=0):  # type: ignore[no-untyped-def]
        """As `Rollouts.collect`."""
        episodes, frames, stats = self.sampled(tasks, iteration)
        self.record(episodes, frames, iteration, round)
        COST[iteration] = stats.seconds_policy, busy(episodes)
        return episodes, frames


COST: dict[int, tuple[float, float]] = {}


def busy(episodes: list[Episode]) -> float:
    """Seconds of all screens inside actions."""
    return sum(s.seconds_env for e in episodes for s in e.steps)


def one_run(p: Params, recipe: str, start: Path, pool: tuple[str, str], warmup: int) -> list[Row]:
    """Train; a row per iteration after the warm-up."""
    me, rows, last = psutil.Process(), list[Row](), [time.perf_counter(), 0.0]
    with tempfile.TemporaryDirectory(prefix="async-collection-") as scratch:
        work, rl = Path(scratch), p.rl_for(recipe)
        tracker = Tracker(work / "curves.jsonl", enabled=False)
        ctx = StageContext(p, "rl", {"recipe": recipe, "seed": "0"}, work, work, work, tracker)
        opened = open_start(start, p.model, rl, 0, work)
        torch.set_num_threads(p.model.threads)
        rollouts = Timed(ctx, rl, opened.policy, HfSampler(opened), 0, 0, pool, load_manifest(tasks_json()), no_judge)

        def note(i: int, m: Row) -> None:
            now, cpu = time.perf_counter(), cpu_seconds(me)
            row = {"seconds": now - last[0], "cpu": cpu - last[1], "success": m["success"], "rows": m["rows_kept"]}
            if i in COST:
                row["trainer"] = m["collect_s"] / row["seconds"]
                row["engine"] = 1.0 - COST[i][0] / row["seconds"]
                row["env"] = 1.0 - COST[i][1] / (row["seconds"] * p.env.slots)
            else:
                row |= {k: m[f"idle_{k}"] for k in ("trainer", "engine", "env")}
            rows.append(row)
            last[:] = [now, cpu]

        options: dict[str, Any] = {"seed": 0, "work": work, "log": tracker, "on_iteration": note}
        COST.clear()
        last[:] = [time.perf_counter(), cpu_seconds(me)]
        if rl.collection.mode == "async":
            with opened_producer(ctx, rl, rollouts, opened, 0, work) as producer:
                loop.train(opened.policy, opened.learner, producer, rl, producer=producer, **options)
        else:
            loop.train(opened.policy, opened.learner, rollouts, rl, **options)
    return rows[warmup:]


def cpu_seconds(me: psutil.Process) -> float:
    """Of this process, its living descendants and those it has waited for."""
    own = me.cpu_times()
    return own.user + own.system + tree_cpu(me)


def main() -> None:
    """Measure and print."""
    a = argparse.ArgumentParser(description="Asynchronous against synchronous collection.")
    a.add_argument("--iterations", type=int, default=8)
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--workers", type=int, default=1)
    a.add_argument("--staleness", type=int, default=1)
    a.add_argument("--groups", type=int)
    a.add_argument("--group-size", type=int)
    a.add_argument("--slots", type=int)
    a.add_argument("--start", type=Path, default=Path("results/sft/seed0/checkpoint"))
    args = a.parse_args()
    if args.iterations <= args.warmup:
        a.error("--iterations must exceed --warmup")
    if not tasks_json().exists():
        a.error(f"{tasks_json()} is missing: make it with `guiderail provision`")
    start = args.start if args.start.exists() else Path("assets/tiny-vlm")
    tree = load().model_dump(mode="json")
    tree["rl"] |= {"iterations": args.iterations, "save_every": args.iterations, "importance_cap": 2.0}
    tree["rl"] |= {k: v for k in ("groups", "group_size") if (v := getattr(args, k))}
    tree["env"] |= {"slots": args.slots} if args.slots else {}
    ahead = {"mode": "async", "workers": args.workers, "max_staleness": args.staleness}
    tree["recipes"] = {"sync": {}, "async": {"collection": ahead}}
    tree["sweep"] |= {"recipe": ["sync", "async"]}
    p = parse(tree)
    found: dict[str, list[Row]] = {"sync": [], "async": []}
    print(f"start {start}, {p.rl.groups} x {p.rl.group_size} episodes an iteration, {p.env.slots} screens", flush=True)
    with env_pool(p.env) as pool:
        for number in range(args.rounds):
            for kind in ("sync", "async") if number % 2 == 0 else ("async", "sync"):
                rows = one_run(p, kind, start, pool, args.warmup)
                found[kind] += rows
                print(f"{kind:5s} run {number}: " + told(rows), flush=True)
    for kind, rows in found.items():
        print(f"{kind:5s}: {told(rows)}")
    ratio = np.median([r["seconds"] for r in found["async"]]) / np.median([r["seconds"] for r in found["sync"]])
    print(f"async / sync: {ratio:.2f} seconds per iteration (median of {len(found['async'])})")


def told(rows: list[Row]) -> str:
    """Medians of seconds and CPU seconds, means of the rest."""
    mid = {k: float(np.median([r[k] for r in rows])) for k in ("seconds", "cpu")}
    mean = {k: float(np.mean([r[k] for r in rows])) for k in ("trainer", "engine", "env", "success", "rows")}
    return (
        f"{mid['seconds']:.2f} s an iteration ({mid['cpu']:.2f} CPU s); idle: trainer {mean['trainer']:.0%}, engine "
        f"{mean['engine']:.0%}, screens {mean['env']:.0%}; success {mean['success']:.2f}, {mean['rows']:.0f} rows"
    )


if __name__ == "__main__":
    main()
