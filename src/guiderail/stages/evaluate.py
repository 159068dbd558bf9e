"""evaluate: base, SFT and RL checkpoints on train, fresh and held-out tasks.

Reads results/provision/tasks.json, model.path, results/sft/seedS/checkpoint and results/merge/R/seedS/model; with
evaluate.retrieval also results/demos: those checkpoints play once more, as base_demo, sft_demo or rl_demo, each task
after the nearest demonstration of a train task. Writes
episodes.parquet (one row per planned episode, columns in `bench.records`), metrics.json, and frames/ of the episodes
that become film strips; on a recorded benchmark (`bench.recorded`) also the lines of each checkpoint, and
recorded.json. Refuses tasks that a checkpoint was trained on, before anything is played. Base and SFT do not depend on
the recipe: their episodes are remembered in .work/eval-cache and shared by all recipes.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pandas as pd

from guiderail.bench import evaluate as bench
from guiderail.bench.metrics import metrics
from guiderail.bench.protocols import PROTOCOLS
from guiderail.bench.retrieval import DemoIndex, example_of
from guiderail.envs.types import Observation
from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.models.prompts import Example, PromptBuilder
from guiderail.pool.local import env_pool
from guiderail.progress import Progress
from guiderail.provenance import tree_digest
from guiderail.rollout.collector import collect
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.types import Episode
from guiderail.stages import evaluate_recorded, paths, promotion
from guiderail.stages.context import StageContext
from guiderail.tasks import splits
from guiderail.tasks.types import TaskSpec

CACHE = paths.WORK / "eval-cache"


def run(ctx: StageContext, recipe: str, seed: str, benchmark: str) -> None:
    """Evaluate the checkpoints of one recipe and seed on one benchmark."""
    manifest = splits.load_manifest(paths.tasks_json())
    places = {
        "base": bench.Subject("base", Path(ctx.params.model.path)),
        "sft": bench.Subject("sft", paths.sft(seed) / "checkpoint", int(seed)),
        "rl": bench.Subject("rl", paths.merge(recipe, seed), int(seed)),
    }
    subjects = [places[name] for name in places if name in ctx.params.evaluate.checkpoints]
    for subject in subjects:
        bench.check_subject(manifest, subject.folder)
    recorded = benchmark in PROTOCOLS
    results = (
        evaluate_recorded.play(ctx, subjects, benchmark, CACHE)
        if recorded
        else play(ctx, subjects, manifest, benchmark)
    )
    head = {"recipe": recipe, "seed": int(seed), "benchmark": benchmark, "split_hash": manifest["hash"]}
    write(ctx, results, head)
    promotion.gate(ctx, results, head, ctx.params.evaluate)


def play(
    ctx: StageContext, subjects: list[bench.Subject], manifest: splits.Manifest, benchmark: str
) -> dict[str, bench.Result]:
    """Results of all subjects on the manifest's tasks, remembered or played now."""
    p = ctx.params.evaluate
    jobs = bench.plan(manifest, benchmark, p)
    again = [s for s in subjects if s.name in p.retrieval]
    index = DemoIndex.read(paths.demos(), manifest, p.retrieval_text) if again else None
    shown = {bench.Subject(f"{s.name}_demo", s.folder, s.seed): index for s in again}
    results: dict[str, bench.Result] = {}
    with ctx.progress(len(jobs) * (len(subjects) + len(shown)), "episodes") as bar:
        for subject in [*subjects, *shown]:
            player = Player(ctx, subject, jobs, bar, shown.get(subject))
            strips = 0 if subject in shown else p.film_strips
            results[subject.name] = bench.measure(subject, player.identity(manifest), CACHE, strips, player.play)
            if results[subject.name].remembered:
                bar.update(len(jobs))
    return results


class Player:
    """Plays all jobs with one checkpoint; `index`: demonstrations to choose one from before each task."""

    def __init__(
        self,
        ctx: StageContext,
        subject: bench.Subject,
        jobs: list[bench.Job],
        bar: Progress,
        index: DemoIndex | None = None,
    ) -> None:
        self.ctx, self.subject, self.jobs, self.bar, self.index = ctx, subject, jobs, bar, index

    def identity(self, manifest: splits.Manifest) -> dict[str, object]:
        """Everything that can change a result."""
        params, p = self.ctx.params, self.ctx.params.evaluate
        demos = tree_digest(paths.demos() / "demos.jsonl") if self.index else None
        shown = {"retrieval": [demos, p.retrieval_steps, p.retrieval_text]} if self.index else {}
        return shown | {
            "checkpoint": bench.checkpoint_digest(self.subject.folder),
            "tasks": [[task.to_json(), number] for task, number in self.jobs],
            "split_hash": manifest["hash"],
            "prompt": params.prompt.model_dump(mode="json"),
            "temperature": params.evaluate.temperature,
            "seed": self.subject.seed if params.evaluate.temperature > 0 else 0,
            "dtype": params.model.dtype,
            "step_ms": params.env.step_ms,
            "desktop": [params.env.desktop.width, params.env.desktop.height],
            "code": bench.code_digest(),
        }

    def play(self, folder: Path) -> tuple[list[Episode], float]:
        """Play every job; frames go to `folder`. Returns all attempts and the seconds they took."""
        params, started, shown = self.ctx.params, time.perf_counter(), 0
        policy = load_policy(self.subject.folder, params.model)
        frames = FrameStore(folder, durable=False)
        builder = PromptBuilder(policy.tokenizer, params.prompt, policy.image_tokens, policy.resized)

        def progress(done: int, total: int) -> None:
            nonlocal shown
            self.bar.update(done - shown, checkpoint=self.subject.name)
            shown = done

        def example(task: TaskSpec, seen: Observation) -> Example | None:
            assert self.index is not None
            found = self.index.nearest(task, seen.instruction, seen.png)
            if found is None:
                return None
            made = example_of(found.demo, builder, self.index.frames, params.evaluate.retrieval_steps)
            for sha, *_ in made.steps:
                frames.put(self.index.frames.get_png(sha))
            return made

        who, bill = self.ctx.label, self.ctx.pool_costs
        with env_pool(params.env, self.ctx.env_pool_url, owner=who, costs=bill) as (url, token):
            episodes, _ = collect(
                HfEngine(policy, frames),
                (url, token),
                self.jobs,
                builder,
                frames=frames,
                temperature=params.evaluate.temperature,
                run_seed=self.subject.seed,
                policy_version=0,
                max_infra_retries=params.env.max_infra_retries,
                slots=params.env.slots,
                progress=progress,
                example=example if self.index else None,
            )
        return episodes, time.perf_counter() - started


def write(ctx: StageContext, results: dict[str, bench.Result], head: dict[str, object]) -> None:
    """Write the outputs and log the main figures."""
    rows = pd.concat([r.rows for r in results.values()], ignore_index=True)
    rows.to_parquet(ctx.out / "episodes.parquet", index=False)
    (ctx.out / "frames").mkdir()
    for result in results.values():
        for frame in result.frames.glob("*.png"):
            shutil.copyfile(frame, ctx.out / "frames" / frame.name)
    found = {
        **head,
        **metrics(results, ctx.params.evaluate),
        "strips": [list(s) for r in results.values() for s in r.strips],
        **bench.costs(results.values()),
    }
    ctx.remember(bench.costs(r for r in results.values() if r.remembered))
    (ctx.out / "metrics.json").write_text(json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    means = {
        f"success.{name}.{split}": m["success"]["mean"]
        for name, c in found["checkpoints"].items()
        for split, m in c["splits"].items()
    }
    means |= {
        f"gain.{step}.{split}".replace("->", "-"): g["mean"]
        for step, x in found["gains"].items()
        for split, g in x.items()
    }
    ctx.tracker.log({k: float(v) for k, v in means.items() if v is not None}, 0)
    promotion.show(ctx, results, found)
    ctx.say(
        ", ".join(f"{k[8:]} {100 * v:.1f} %" for k, v in means.items() if k.startswith("success.") and v is not None)
    )
