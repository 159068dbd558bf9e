"""rl: reinforcement learning from the warm-up's checkpoint, in real browsers or along recorded demonstrations.

Reads results/sft/seedS/checkpoint, results/prm/R/seedS/judge, the task manifest and, for semi-online training,
results/demos (params rl, prm.min_auroc, recipes.R, engine, prompt, model, env). Writes checkpoint/, metrics.json and
rollouts/ (episodes, steps, rows and what the trainer made of them as Parquet, one part per iteration, and a sample of
frames), and schedule.jsonl where rollouts are collected asynchronously. A recipe of several phases trains them one
after the other, each with its own optimiser and schedule, from the weights the one before left. Resumes from its
attempt folder.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

from guiderail.pool.local import env_pool
from guiderail.stages import paths
from guiderail.stages.collection import opened_producer
from guiderail.stages.context import StageContext
from guiderail.stages.judging import Over, no_judge, opened_judge
from guiderail.stages.rl_end import publish, told
from guiderail.stages.rollouts import PoolRollouts, ReplayRollouts, before, read_recorded
from guiderail.tasks.splits import load_manifest
from guiderail.train import rl as loop
from guiderail.train.metrics import Shifted, Totals
from guiderail.train.optim import Learner
from guiderail.train.sampler import VllmSampler, open_sampler
from guiderail.train.start import load_reference, open_start
from guiderail.train.trace import write_trace


def run(ctx: StageContext, recipe: str, seed: str) -> None:
    """Train one recipe and seed."""
    if ctx.params.trainer.kind == "ray":
        from guiderail.stages import rl_ray  # Ray is loaded by those who ask for it alone

        return rl_ray.run(ctx, recipe, seed)
    p, phases = ctx.params, ctx.params.phases_for(recipe)
    tasks = load_manifest(paths.tasks_json())
    start = paths.sft(seed) / "checkpoint"
    opened = open_start(start, p.model, phases[0], ctx.seed, ctx.work)
    reference = load_reference(start, p.model) if any(rl.kl_coef > 0 for rl in phases) else None
    online = any(rl.algorithm != "semi_online" for rl in phases)
    recorded = None
    if any(rl.algorithm == "semi_online" for rl in phases):
        recorded = read_recorded(paths.demos() / "demos.jsonl", paths.demos() / "frames")

    found: list[Totals] = []
    works = [ctx.work / f"phase{n}" if len(phases) > 1 else ctx.work for n in range(len(phases))]
    with ExitStack() as stack:
        pool = stack.enter_context(opened_pool(ctx)) if online else None
        sampler = stack.enter_context(
            open_sampler(
                p.engine, opened, phases[0], p.model, images=p.prompt.chunk_steps, work=ctx.work, url=ctx.engine_url
            )
        )
        bar = stack.enter_context(ctx.progress(sum(rl.iterations for rl in phases)))
        for number, rl in enumerate(phases):
            first, parts = before(phases, number)
            ahead = rl.collection.mode == "async"
            rollouts: PoolRollouts | ReplayRollouts
            if rl.algorithm == "semi_online":
                assert recorded is not None
                rollouts = ReplayRollouts(ctx, rl, opened.policy, sampler, first, parts, recorded)
            else:
                assert pool is not None
                judge: Over = no_judge
                if not ahead or isinstance(sampler, VllmSampler):
                    judge = stack.enter_context(opened_judge(ctx, rl, paths.prm(recipe, seed) / "judge"))
                rollouts = PoolRollouts(ctx, rl, opened.policy, sampler, first, parts, pool, tasks, judge)
            with ExitStack() as inner:
                producer = None
                if ahead:
                    producer = inner.enter_context(opened_producer(ctx, rl, rollouts, opened, number, works[number]))
                found.append(
                    loop.train(
                        opened.policy,
                        Learner(opened.learner.named, rl) if number else opened.learner,
                        producer or rollouts,
                        rl,
                        seed=ctx.seed,
                        work=works[number],
                        log=Shifted(ctx.tracker, first),
                        producer=producer,
                        reference=reference if rl.kl_coef > 0 else None,
                        on_start=lambda done, n=rl.iterations: ctx.begin(bar, done, n, "iterations"),  # type: ignore[misc]
                        on_iteration=lambda i, m: bar.update(1, **told(m)),
                        on_scored=lambda i, rows, of=rollouts: write_trace(  # type: ignore[misc]
                            ctx.work / "rollouts", rows, of.part(i)
                        ),
                    )
                )
    publish(ctx, opened, phases[-1], found, works, tasks=tasks, recipe=recipe)


def opened_pool(ctx: StageContext) -> AbstractContextManager[tuple[str, str]]:
    """The env pool of this stage."""
    log, bill = ctx.work / "env-pool.log", ctx.pool_costs
    return env_pool(ctx.params.env, ctx.env_pool_url, log=log, owner=ctx.label, costs=bill)
