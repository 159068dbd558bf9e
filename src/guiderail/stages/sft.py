"""sft: a supervised warm-up on the demonstrations, thought line included.

Reads results/demos and the base model (params model, prompt, sft). Writes checkpoint/ (Hugging Face folder or
adapter, with manifest), metrics.json; curves.jsonl is written as it trains; with a teacher (sft.cot) also cot.jsonl:
every step's thought, who wrote it and why one is missing. Resumes from its attempt folder; a teacher's answers are
remembered in .work/cot-cache, for all seeds.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from guiderail.endpoint import Endpoint
from guiderail.models.frames import FrameStore
from guiderail.models.policy import Policy
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.tasks.splits import load_manifest
from guiderail.train import cot, sft
from guiderail.train.demos import load_demos, sayable
from guiderail.train.start import open_start, write_checkpoint, write_json


def run(ctx: StageContext, seed: str) -> None:
    """Warm up one seed."""
    p = ctx.params
    tasks = load_manifest(paths.tasks_json())
    opened = open_start(Path(p.model.path), p.model, p.sft, ctx.seed, ctx.work)
    found = teacher(ctx, opened.policy) if p.sft.cot.source == "teacher" else None
    demos = load_demos(paths.demos(), opened.policy, p.prompt, thoughts=found.thoughts if found else None)
    steps = sft.steps_of(len(demos.rows), p.sft)
    ctx.say(f"{len(demos.tasks)} demonstrations, {len(demos.rows)} rows, {steps} optimiser steps")

    with ctx.progress(steps) as bar:
        totals = sft.train(
            opened.policy,
            opened.learner,
            demos.rows,
            demos.names,
            demos.frames,
            p.sft,
            seed=ctx.seed,
            work=ctx.work,
            log=ctx.tracker,
            on_start=lambda done: ctx.begin(bar, done, steps, "optimiser steps"),
            on_step=lambda i, m: bar.update(1, loss=m["loss"], accuracy=m["token_accuracy"]),
        )

    write_checkpoint(
        ctx.out / "checkpoint", opened, p.sft, stage="sft", seed=ctx.seed, tasks=tasks, trained=demos.tasks
    )
    counts: dict[str, Any] = {"rows": len(demos.rows), "demos": len(demos.tasks)}
    if found:
        counts["cot"] = found.summary() | {"dropped": len(demos.dropped), "currency": p.sft.cot.endpoint.currency}
        lines = (json.dumps(r, ensure_ascii=False, sort_keys=True) + "\n" for r in found.record)
        (ctx.out / "cot.jsonl").write_text("".join(lines), encoding="utf-8")
    write_json(ctx.out / "metrics.json", asdict(totals) | counts)


def teacher(ctx: StageContext, policy: Policy) -> cot.Annotations:
    """Thoughts of the teacher for all demonstrated steps. One process asks at a time: the next finds the answers."""
    p, folder, cache = ctx.params, paths.demos(), paths.WORK / "cot-cache"
    steps = cot.steps_of(folder / "demos.jsonl", p.sft.cot)
    cache.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(cache / "lock"),
        Endpoint(p.sft.cot.endpoint, "sft.cot.endpoint") as endpoint,
        ctx.progress(len(steps), "thoughts") as bar,
    ):
        usable = sayable(folder, policy, p.prompt)
        found = cot.annotate(
            steps, FrameStore(folder / "frames"), endpoint, p.sft.cot, cache, usable, lambda n: bar.update(n)
        )
    cost = f"{found.price_now:.4f} {p.sft.cot.endpoint.currency}".strip()
    ctx.say(
        f"{len(found.thoughts)} thoughts of {p.sft.cot.endpoint.model}, {len(found.missing)} steps without one; "
        f"{found.asked} asked now ({cost}), {found.remembered} remembered"
    )
    ctx.tracker.log({f"cot.{k}": float(v) for k, v in found.summary().items()}, 0)
    ctx.remember(found.from_cache())
    return found
