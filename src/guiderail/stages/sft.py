"""sft: a supervised warm-up on the demonstrations, thought line included.

Reads results/demos and the base model (params model, prompt, sft). Writes checkpoint/ (Hugging Face folder or
adapter, with manifest), metrics.json; curves.jsonl is written as it trains. Resumes from its attempt folder.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.tasks.splits import load_manifest
from guiderail.train import sft
from guiderail.train.demos import load_demos
from guiderail.train.start import open_start, write_checkpoint, write_json


def run(ctx: StageContext, seed: str) -> None:
    """Warm up one seed."""
    p = ctx.params
    tasks = load_manifest(paths.tasks_json())
    opened = open_start(Path(p.model.path), p.model, p.sft, ctx.seed, ctx.work)
    demos = load_demos(paths.demos(), opened.policy, p.prompt)
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
    write_json(ctx.out / "metrics.json", asdict(totals) | {"rows": len(demos.rows), "demos": len(demos.tasks)})
