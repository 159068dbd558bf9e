"""rl: GRPO from the warm-up's checkpoint on endless fresh instances of the train templates, in real browsers.

Reads results/sft/seedS/checkpoint and the task manifest (params rl, recipes.R, prompt, model, env). Writes
checkpoint/, metrics.json and rollouts/ (episodes, steps, rows and what the trainer made of them, as Parquet, one part
per iteration, and a sample of frames). Resumes from its attempt folder.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from guiderail.models.frames import FrameStore
from guiderail.models.policy import Policy
from guiderail.models.prompts import PromptBuilder
from guiderail.params import Rl
from guiderail.pool.local import env_pool
from guiderail.rollout.collector import collect
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.store import write_episodes
from guiderail.rollout.types import Episode
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.tasks.splits import load_manifest, rl_task
from guiderail.tasks.types import TaskSpec
from guiderail.train import rl as loop
from guiderail.train.optim import folded
from guiderail.train.start import load_reference, open_start, write_checkpoint, write_json
from guiderail.train.trace import write_trace


def run(ctx: StageContext, recipe: str, seed: str) -> None:
    """Train one recipe and seed."""
    p, rl = ctx.params, ctx.params.rl_for(recipe)
    tasks = load_manifest(paths.tasks_json())
    start = paths.sft(seed) / "checkpoint"
    opened = open_start(start, p.model, rl, ctx.seed, ctx.work)
    reference = load_reference(start, p.model) if rl.kl_coef > 0 else None

    log, bill = ctx.work / "env-pool.log", ctx.pool_costs
    opened_pool = env_pool(p.env, ctx.env_pool_url, log=log, owner=ctx.label, costs=bill)
    with opened_pool as pool, ctx.progress(rl.iterations) as bar:
        totals = loop.train(
            opened.policy,
            opened.learner,
            PoolRollouts(ctx, rl, opened.policy, pool, tasks),
            rl,
            seed=ctx.seed,
            work=ctx.work,
            log=ctx.tracker,
            reference=reference,
            on_start=lambda done: ctx.begin(bar, done, rl.iterations, "iterations"),
            on_iteration=lambda i, m: bar.update(
                1, success=m["success"], kept=m["rows_kept"], gap=m.get("logprob_gap_max", "-")
            ),
            on_scored=lambda i, rows: write_trace(ctx.work / "rollouts", rows, i),
        )

    write_checkpoint(
        ctx.out / "checkpoint",
        opened,
        rl,
        stage="rl",
        seed=ctx.seed,
        tasks=tasks,
        trained=totals.trained_on,
        recipe=recipe,
    )
    shutil.copytree(ctx.work / "rollouts", ctx.out / "rollouts")
    write_json(ctx.out / "metrics.json", {k: v for k, v in totals.to_json().items() if k != "trained_on"})


@dataclass(frozen=True)
class PoolRollouts:
    """Episodes from the env pool at `pool` (url, token); every iteration's records go to the attempt folder."""

    ctx: StageContext
    rl: Rl
    policy: Policy
    pool: tuple[str, str]
    manifest: dict[str, Any]

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        """`rl.groups` fresh instances, templates evenly drawn."""
        first = round * self.rl.groups
        return [rl_task(self.manifest, self.ctx.seed, iteration, first + k) for k in range(self.rl.groups)]

    def collect(self, tasks: list[TaskSpec], iteration: int, round: int = 0) -> tuple[list[Episode], FrameStore]:
        """`rl.group_size` siblings of every task; frames are kept in memory, as long as the trainer needs them."""
        p, frames = self.ctx.params, FrameStore(None)
        with folded(self.policy.model):
            episodes, _ = collect(
                HfEngine(self.policy, frames),
                self.pool,
                [(t, s) for t in tasks for s in range(self.rl.group_size)],
                PromptBuilder(self.policy.tokenizer, p.prompt, self.policy.image_tokens, self.policy.resized),
                frames=frames,
                temperature=self.rl.temperature,
                run_seed=self.ctx.seed,
                policy_version=iteration,
                max_infra_retries=p.env.max_infra_retries,
                slots=p.env.slots,
            )
        self.record(episodes, frames, iteration, round)
        return episodes, frames

    def record(self, episodes: list[Episode], frames: FrameStore, iteration: int, round: int) -> None:
        """Store the records, and the frames of the first episode; every `save_every` iterations show it in the
        tracker."""
        folder = self.ctx.work / "rollouts"
        write_episodes(folder, episodes, part=iteration * max(1, self.rl.filter_rounds) + round)
        sample = FrameStore(folder / "frames", durable=False)
        for k, step in enumerate(episodes[0].steps):
            png = frames.get_png(step.frame)
            sample.put(png)
            if iteration % self.rl.save_every == 0 and round == 0:
                self.ctx.tracker.image(f"rollout/step{k}", png, iteration)
