"""Collect the steps of the prm stage once per attempt: scripted episodes, then rollouts of the warm-up's checkpoint.

Guarantees: what was collected survives a kill (a part is a file that exists only when it is whole); the state judge
watches every episode. Frames go to one folder beside the steps.
"""

from __future__ import annotations

import json
from pathlib import Path

from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.models.prompts import PromptBuilder
from guiderail.pool.local import env_pool
from guiderail.progress import Progress
from guiderail.rewards.progress import ProgressJudge
from guiderail.rollout.collector import collect
from guiderail.rollout.engines.hf import HfEngine
from guiderail.stages.context import StageContext
from guiderail.tasks.splits import Manifest
from guiderail.train import prm_data
from guiderail.train.prm_data import SCRIPTED, Collected

PARTS = ("train", "heldout")
POLICY = "policy"


def collected(
    folder: Path, manifest: Manifest, policy: Path, builder: PromptBuilder, ctx: StageContext
) -> tuple[dict[str, Collected], FrameStore]:
    """Steps by part, and their frames. policy: the checkpoint whose rollouts are judged too."""
    frames = FrameStore(folder / "frames", durable=False)
    missing = [part for part in PARTS if not (folder / f"{part}.jsonl").exists()]
    prm, env, total = ctx.params.prm, ctx.params.env, 0
    for part in missing:
        names = len(manifest[f"{part}_templates"])
        total += names * sum(prm_data.count_of(prm, s, part) for s in (*SCRIPTED, POLICY))
    if missing:
        log, bill = ctx.work / "env-pool.log", ctx.pool_costs
        opened = env_pool(env, ctx.env_pool_url, log=log, owner=ctx.label, costs=bill)
        with opened as pool, ctx.progress(total, "episodes") as bar:
            for part in missing:
                steps = _part(part, pool, manifest, policy, builder, frames, ctx, bar)
                counts = {"unlabelled": steps.unlabelled, "env_steps": steps.env_steps, "tokens": steps.tokens}
                (folder / f"{part}.json").write_text(json.dumps(counts))
                prm_data.write_steps(folder / f"{part}.jsonl", steps.steps)
    found = {
        part: Collected(
            prm_data.read_steps(folder / f"{part}.jsonl"), **json.loads((folder / f"{part}.json").read_text())
        )
        for part in PARTS
    }
    return found, frames


def _part(
    part: str,
    pool: tuple[str, str],
    manifest: Manifest,
    checkpoint: Path,
    builder: PromptBuilder,
    frames: FrameStore,
    ctx: StageContext,
    bar: Progress,
) -> Collected:
    prm, env = ctx.params.prm, ctx.params.env
    played = prm_data.run_scripted(
        pool, manifest, prm, part, ctx.seed, builder, frames, workers=env.slots, retries=env.max_infra_retries,
        done=bar.update,
    )  # fmt: skip
    plans = prm_data.plan(manifest, prm, part, ctx.seed, POLICY)
    jobs = [(task, i) for tasks in plans.values() for i, task in enumerate(tasks)]
    if not jobs:
        return played
    shown = 0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        bar.update(done - shown)
        shown = done

    policy = load_policy(checkpoint, ctx.params.model)
    episodes, _ = collect(
        HfEngine(policy, frames),
        pool,
        jobs,
        builder,
        frames=frames,
        temperature=prm.temperature,
        run_seed=ctx.seed,
        policy_version=0,
        max_infra_retries=env.max_infra_retries,
        slots=env.slots,
        progress=progress,
        judge=ProgressJudge(),
    )
    return played + prm_data.from_episodes(episodes, frames)
