"""prm: the process reward model of a recipe that wants one; any other recipe is told so in a second.

Reads results/sft/seedS/checkpoint, the task manifest and model.path (params prm, rl.algorithm, rl.step_wise.judge,
recipes.R, prompt, model, env). Writes judge/ (judge.json: whether a model was needed; then checkpoint/ and
calibration.json: how good it is on held-out templates), and beside it metrics.json, steps.jsonl (what it was trained
on) and judged.jsonl (what it was measured on). Recipes with the same parameters and seed share one training, remembered
in .work/prm-cache. Resumes from its attempt folder. Does not decide who may use the judge: the rl stage does.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from guiderail.checkpoints.manifest import digest_json
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.tasks.splits import load_manifest

CACHE = paths.WORK / "prm-cache"
CODE = (
    *("actions", "algorithms", "bench", "checkpoints", "envs", "models", "pool", "rewards", "rollout", "seeds.py"),
    *("stages/prm.py", "stages/prm_steps.py", "tasks", "train"),
)
KEEP = 16


def run(ctx: StageContext, recipe: str, seed: str) -> None:
    """Train and measure the judge of one recipe and seed, when it wants one."""
    judge = ctx.out / "judge"
    judge.mkdir()
    needed = ctx.params.wants_prm(recipe)
    (judge / "judge.json").write_text(json.dumps({"needed": needed}) + "\n")
    if not needed:
        ctx.say(f"recipe {recipe} trains without a process reward model; nothing to do")
        return
    tasks, start = load_manifest(paths.tasks_json()), paths.sft(seed) / "checkpoint"
    CACHE.mkdir(parents=True, exist_ok=True)
    entry = CACHE / digest_json(identity(ctx, tasks["hash"], start))[:32]
    with FileLock(f"{entry}.lock"):
        remembered = entry.exists()
        if not remembered:
            partial = ctx.work / "made"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(ctx, tasks, start, partial)
            os.rename(partial, entry)
            prune(entry)
        os.utime(entry)
        shutil.copytree(entry, ctx.out, dirs_exist_ok=True)
    spent = json.loads((ctx.out / "metrics.json").read_text())
    ctx.remember({k: spent[k] if remembered else 0 for k in ("env_steps", "tokens")})
    tell(ctx, json.loads((judge / "calibration.json").read_text()))


def identity(ctx: StageContext, split_hash: str, policy: Path) -> dict[str, Any]:
    """Everything that can change a judge and its figures. policy: the checkpoint whose rollouts it learns from."""
    from guiderail.bench.evaluate import checkpoint_digest, code_digest

    p = ctx.params
    return {
        "prm": p.prm.model_dump(mode="json", exclude={"min_auroc"}),
        "prompt": p.prompt.model_dump(mode="json"),
        "model": [p.model.dtype, p.model.train_vision, checkpoint_digest(Path(p.model.path))],
        "policy": checkpoint_digest(policy),
        "tasks": split_hash,
        "step_ms": p.env.step_ms,
        "desktop": [p.env.desktop.width, p.env.desktop.height],
        "seed": ctx.seed,
        "code": code_digest(CODE),
    }


def make(ctx: StageContext, tasks: dict[str, Any], policy: Path, out: Path) -> None:
    """Collect, train, measure; what the stage publishes goes to `out`."""
    from guiderail.models.loading import load_policy
    from guiderail.models.prompts import PromptBuilder
    from guiderail.rewards.prm_judge import PrmModel
    from guiderail.stages.prm_steps import collected
    from guiderail.train import prm, sft
    from guiderail.train.prm_data import write_steps
    from guiderail.train.start import open_start, write_checkpoint, write_json

    p = ctx.params
    opened = open_start(Path(p.model.path), p.model, p.prm, ctx.seed, ctx.work)
    builder = PromptBuilder(opened.policy.tokenizer, p.prompt, opened.policy.image_tokens, opened.policy.resized)
    data, frames = collected(ctx.work / "data", tasks, policy, builder, ctx)
    model = PrmModel(opened.policy, p.prompt, frames)
    made = prm.rows_of(model, data["train"].steps)
    steps = sft.steps_of(len(made.rows), p.prm)
    ctx.say(
        f"{len(made.rows)} steps of {len(made.tasks)} tasks, {sum(s.good for s in data['train'].steps)} of them good; "
        f"{steps} optimiser steps"
    )
    with ctx.progress(steps) as bar:
        totals = sft.train(
            opened.policy,
            opened.learner,
            made.rows,
            made.names,
            frames,
            p.prm,
            seed=ctx.seed,
            work=ctx.work,
            log=ctx.tracker,
            on_start=lambda done: ctx.begin(bar, done, steps, "optimiser steps"),
            on_step=lambda i, m: bar.update(1, loss=m["loss"], accuracy=m["token_accuracy"]),
        )
    judge = out / "judge"
    judge.mkdir()
    write_checkpoint(judge / "checkpoint", opened, p.prm, stage="prm", seed=ctx.seed, tasks=tasks, trained=made.tasks)
    model = PrmModel(load_policy(judge / "checkpoint", p.model), p.prompt, frames)  # what will judge, as it is stored
    held, judged = prm.measure(model, data["heldout"].steps, p.prm)
    own, _ = prm.measure(model, data["train"].steps, p.prm)
    figures = held | prm.against_facts(model, data["train"].steps, data["heldout"].steps, judged, p.prm)
    figures |= {"part": "heldout templates", "split_hash": tasks["hash"], "seed": ctx.seed}
    figures |= {"train": {k: own[k] for k in ("n", "good", "accuracy", "auroc", "ece", "brier")}}
    write_json(judge / "calibration.json", figures)
    write_steps(out / "steps.jsonl", data["train"].steps)
    write_steps(out / "judged.jsonl", data["heldout"].steps)
    counts = {k: sum(getattr(d, k) for d in data.values()) for k in ("unlabelled", "env_steps", "tokens")}
    areas = {"auroc": held["auroc"]["mean"], "facts_auroc": figures["facts"]["auroc"]["mean"]}
    write_json(out / "metrics.json", asdict(totals) | counts | {"rows": len(made.rows)} | areas)


def tell(ctx: StageContext, found: dict[str, Any]) -> None:
    """Log and say the main figures."""
    area, facts, gain = found["auroc"], found["facts"]["auroc"]["mean"], found["over_facts"]
    values = {"auroc": area["mean"], "facts_auroc": facts, "accuracy": found["accuracy"], "ece": found["ece"]}
    ctx.tracker.log({f"prm.{k}": float(v) for k, v in values.items() if v is not None}, 0)
    shown = "none" if area["mean"] is None else f"{area['mean']:.3f} [{area['lo']:.3f}, {area['hi']:.3f}]"
    ece, right = ("none" if found[k] is None else f"{found[k]:.3f}" for k in ("ece", "accuracy"))
    ctx.say(f"held-out templates: AUROC {shown}, n = {found['n']}, ECE {ece}, accuracy {right}")
    if gain["mean"] is not None:
        ctx.say(
            f"a table of the told facts alone has AUROC {facts:.3f}: the model's less that is {gain['mean']:+.3f} "
            f"[{gain['lo']:+.3f}, {gain['hi']:+.3f}]"
        )


def prune(keep: Path) -> None:
    """Forget all but the newest remembered judges."""
    entries = sorted((e for e in CACHE.iterdir() if e.is_dir()), key=lambda e: e.stat().st_mtime)
    for old in entries[: max(0, len(entries) - KEEP)]:
        if old != keep:
            shutil.rmtree(old, ignore_errors=True)
            Path(f"{old}.lock").unlink(missing_ok=True)
