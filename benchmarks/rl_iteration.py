"""Where the seconds of an RL iteration go, and how fast the engine decodes.

    python benchmarks/rl_iteration.py [--iterations 3] [--start assets/tiny-vlm] [--decode] [--profile FILE]

Runs the real loop of the `rl` stage on params.yaml's default: episodes in real pages through a pool, gates, score,
updates. Prints per iteration the seconds of every part, by the clock and by CPU time of this process (which depends
least on what else the machine does; pool and browser are other processes), and environment steps per CPU second of
the whole iteration's collection. `--decode` times prefill and decode steps alone, at batch 8 and 32, without a pool.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from guiderail.models.frames import FrameStore
from guiderail.models.policy import Policy
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import Prompt
from guiderail.params import Params, load
from guiderail.pool.local import env_pool
from guiderail.rollout.collector import collect
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import SamplingParams
from guiderail.tasks.splits import build_manifest, rl_task
from guiderail.train.batch import make_batch, minibatches
from guiderail.train.gates import check_rows, feature_counter
from guiderail.train.optim import Learner, folded
from guiderail.train.rl import score, update
from guiderail.train.start import open_start


class Clock:
    """Seconds by name: (wall, CPU of this process)."""

    def __init__(self) -> None:
        self.spent: dict[str, tuple[float, float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), cpu_seconds()
        yield
        had = self.spent.get(name, (0.0, 0.0))
        self.spent[name] = had[0] + time.perf_counter() - wall, had[1] + cpu_seconds() - cpu


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """User plus system seconds of this process (or thread)."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


class TimedEngine(HfEngine):
    """Counts its own CPU seconds and the sizes of its batches."""

    cpu = 0.0
    profile: cProfile.Profile | None = None

    def generate(self, prompts, sampling):  # type: ignore[no-untyped-def]
        """As HfEngine."""
        start = cpu_seconds(resource.RUSAGE_THREAD)
        if self.profile is not None:
            self.profile.enable()
        out = super().generate(prompts, sampling)
        if self.profile is not None:
            self.profile.disable()
        self.cpu += cpu_seconds(resource.RUSAGE_THREAD) - start
        return out


def iteration(
    p: Params, policy: Policy, learner: Learner, pool: tuple[str, str], n: int, profile: cProfile.Profile | None
) -> None:
    """One iteration, timed part by part."""
    rl, clock, frames = p.rl, Clock(), FrameStore(None)
    manifest = build_manifest(p.provision)
    tasks = [(rl_task(manifest, 0, n, k), s) for k in range(rl.groups) for s in range(rl.group_size)]
    with clock("collect"), folded(policy.model):
        engine = TimedEngine(policy, frames)
        engine.profile = profile
        builder = PromptBuilder(policy.tokenizer, p.prompt, policy.image_tokens)
        options: dict[str, Any] = {"temperature": rl.temperature, "run_seed": 0, "slots": p.env.slots}
        episodes, stats = collect(
            engine, pool, tasks, builder, frames=frames, policy_version=n, max_infra_retries=3, **options
        )
    with clock("batch, gates"):
        batch = make_batch(episodes, rl)
        check_rows(batch.rows, batch.names, policy.image_token_id, feature_counter(policy, frames))
    with clock("score"):
        scored = score(policy, batch, frames, rl, None)
    steps = 0
    for epoch in range(rl.epochs):
        for index in minibatches(batch.episode, rl.batch, "rl", 0, n, epoch):
            with clock("update"):
                update(policy, learner, batch, index, scored, frames, rl, rl.lr)
            steps += 1
    gap = scored.gap.max if scored.gap else float("nan")
    success = np.mean([e.outcome.kind == "success" for e in episodes])
    wall, cpu = clock.spent["collect"]
    print(
        f"iteration {n}: {stats.env_steps} env steps, {stats.tokens} tokens, {stats.batches} batches "
        f"(mean {stats.env_steps / stats.batches:.1f}), success {success:.2f}, rows {len(batch.rows)}, "
        f"{steps} updates, gap {gap:.1e}\n"
        f"  env steps/s {stats.env_steps / wall:.1f} by the clock, {stats.env_steps / cpu:.1f} per CPU second; "
        f"tokens/s {stats.tokens / stats.seconds_policy:.0f}, per CPU second {stats.tokens / engine.cpu:.0f}\n"
        f"  engine {stats.seconds_policy:.2f} s wall, {engine.cpu:.2f} s CPU; "
        + "; ".join(f"{k} {w:.2f} s wall, {c:.2f} s CPU" for k, (w, c) in clock.spent.items()),
        flush=True,
    )


def decode(policy: Policy, tokens: int = 24) -> None:
    """Prefill of distinct one-frame prompts, then decode steps at a fixed batch (no stop token)."""
    frames, rng = FrameStore(None), np.random.default_rng(0)
    builder = PromptBuilder(policy.tokenizer, load().prompt, policy.image_tokens)
    policy.stop_ids, stop = (policy.stop_ids[-1],), policy.stop_ids
    policy.suppressed_ids = (*policy.suppressed_ids, *stop)
    policy._masks.clear()
    prompts: list[Prompt] = []
    for i in range(32):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (224, 160, 3), dtype=np.uint8)).save(out, "PNG")
        context = builder.context(f"click on button {i}")
        context.observe(frames.put(out.getvalue()), 160, 224)
        prompts.append(context.prompt())
    policy.features.get([p.frames[0] for p in prompts], frames)
    engine = HfEngine(policy, frames)
    for batch in (1, 8, 16, 32):
        took: dict[int, list[float]] = {1: [], tokens: []}
        for k in range(8):
            for n, times in took.items():
                sampling = [SamplingParams(1.0, 1.0, n, seed=k * 32 + i) for i in range(batch)]
                start = cpu_seconds()
                engine.generate(prompts[:batch], sampling)
                times.append(cpu_seconds() - start)
        first, all_ = (float(np.median(t)) for t in took.values())
        print(
            f"batch {batch:2d}: prefill {first * 1e3:6.1f} ms, "
            f"decode step {(all_ - first) / (tokens - 1) * 1e3:6.2f} ms (CPU)"
        )


def main() -> None:
    """Measure and print."""
    a = argparse.ArgumentParser(description="Where the seconds of an RL iteration go.")
    a.add_argument("--iterations", type=int, default=3)
    a.add_argument("--start", default="assets/tiny-vlm")
    a.add_argument("--decode", action="store_true")
    a.add_argument("--profile", type=Path)
    args = a.parse_args()
    p = load()
    opened = open_start(Path(args.start), p.model, p.rl, 0, Path("."))
    torch.set_num_threads(1)
    if args.decode:
        with folded(opened.policy.model):
            decode(opened.policy)
        return
    profile = cProfile.Profile() if args.profile else None
    with env_pool(p.env) as pool:
        for n in range(args.iterations):
            iteration(p, opened.policy, opened.learner, pool, n, profile)
    if profile is not None:
        profile.dump_stats(args.profile)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
