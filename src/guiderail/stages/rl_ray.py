"""rl with `trainer.kind: ray`: the same stage with its learner, rollout engines and process reward model on a cluster.

This process keeps what `stages.rl` keeps: it opens the env pool, plays the episodes, stores records and curves, and
writes the checkpoint. The weights are elsewhere: shards in the learner's processes, whole copies in the rollout
processes. Training goes on from the attempt folder with any number of processes.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from guiderail.checkpoints.sharded import newest_sharded, sharded_weights
from guiderail.cluster.start import ray_cluster
from guiderail.models.loading import load_outline
from guiderail.pool.local import env_pool
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.stages.judging import opened_judge
from guiderail.stages.rl_end import publish, told
from guiderail.stages.rollouts import PoolRollouts, ReplayRollouts, Rollouts, before, read_recorded
from guiderail.tasks.splits import load_manifest
from guiderail.train.metrics import Shifted, Totals
from guiderail.train.start import Finished, prepared
from guiderail.train.trace import write_trace


def run(ctx: StageContext, recipe: str, seed: str) -> None:
    """Train one recipe and seed."""
    with ray_cluster(ctx.params.trainer, ctx.work / "ray.log"):
        _run(ctx, recipe, seed)


def _run(ctx: StageContext, recipe: str, seed: str) -> None:
    from guiderail.cluster.crew import Crew, reserve
    from guiderail.rewards.ray_judges import JudgeActor, RemoteSigns
    from guiderail.train.ray_learner import Phase, train_on_ray
    from guiderail.train.ray_ranks import Job
    from guiderail.train.ray_sampler import EngineActor, RaySampler

    p, phases, trainer = ctx.params, ctx.params.phases_for(recipe), ctx.params.trainer
    tasks, start = load_manifest(paths.tasks_json()), paths.sft(seed) / "checkpoint"
    model = p.model if trainer.gpus else p.model.model_copy(update={"device": "cpu"})
    load, parent = prepared(start, model, phases[0], ctx.work)
    policy, here = load_outline(load), os.getcwd()

    places = reserve(trainer)
    crew = partial(Crew, group=places, gpus=bool(trainer.gpus), lives=trainer.restarts)
    asked = p.engine.model_copy(update={"url": ctx.engine_url or p.engine.url})
    engine = (here, str(start), model, phases[0], asked, p.prompt.chunk_steps, str(ctx.work.absolute()), ctx.seed)
    engines = crew(EngineActor, engine, first=0, size=trainer.rollout)
    engines.wait(trainer.start_timeout_s)

    def judges(folder: Path, batch: int) -> RemoteSigns:
        made = crew(JudgeActor, (here, str(folder), model, p.prompt, batch), first=trainer.rollout, size=trainer.prm)
        made.wait(trainer.start_timeout_s)
        return RemoteSigns(made, batch)

    sampler, plan = RaySampler(engines), list[Phase]()
    with ExitStack() as stack:
        pool = None
        if any(rl.algorithm != "semi_online" for rl in phases):
            log = ctx.work / "env-pool.log"
            pool = stack.enter_context(
                env_pool(p.env, ctx.env_pool_url, log=log, owner=ctx.label, costs=ctx.pool_costs)
            )
        bar = stack.enter_context(ctx.progress(sum(rl.iterations for rl in phases)))
        for number, rl in enumerate(phases):
            first, parts = before(phases, number)
            rollouts: PoolRollouts | ReplayRollouts
            if rl.algorithm == "semi_online":
                recorded = read_recorded(paths.demos() / "demos.jsonl", paths.demos() / "frames")
                rollouts = ReplayRollouts(ctx, rl, policy, sampler, first, parts, recorded)
            else:
                assert pool is not None
                opened = opened_judge(ctx, rl, paths.prm(recipe, seed) / "judge", judges if trainer.prm else None)
                judge = stack.enter_context(opened)
                rollouts = PoolRollouts(ctx, rl, policy, sampler, first, parts, pool, tasks, judge)
            plan.append(
                Phase(
                    rollouts,
                    Shifted(ctx.tracker, first),
                    on_start=lambda done, n=rl.iterations: ctx.begin(bar, done, n, "iterations"),  # type: ignore[misc]
                    on_iteration=lambda i, m: bar.update(1, **told(m)),
                    on_scored=partial(_trace, ctx, rollouts),
                )
            )
        job = Job(here, str(start), model, tuple(phases), ctx.seed, str(ctx.work.absolute()))
        train_on_ray(trainer, job, plan, sampler)

    works = [job.folder(n) for n in range(len(phases))]
    trained = Finished(sharded_weights(works[-1]), start, parent)
    publish(ctx, trained, phases[-1], [_totals(w) for w in works], works, tasks=tasks, recipe=recipe)


def _trace(ctx: StageContext, rollouts: Rollouts, iteration: int, rows: list[dict[str, Any]]) -> None:
    write_trace(ctx.work / "rollouts", rows, rollouts.part(iteration))


def _totals(folder: Path) -> Totals:
    found = newest_sharded(folder)
    assert found is not None, folder  # the loop saves after its last iteration
    return Totals(**found[1]["meta"])
