"""The evaluate stage on a recorded benchmark: lines of every checkpoint, numbers, and the same outputs as on pages.

Writes <checkpoint>.jsonl (one line per trajectory, with what was predicted) and recorded.json (SOP and step metrics
with intervals, and what the format can reach at best). Lines are kept in .work/eval-cache/recorded under a digest of
everything that can change them, so a killed run goes on with the next trajectory, and base and SFT are played once for
all recipes.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from guiderail.actions.codec import get_codec
from guiderail.bench import evaluate as bench
from guiderail.bench import expressible, recorded, sop, sop_metrics
from guiderail.bench.predict import Batcher, PolicyPredict
from guiderail.bench.protocols import PROTOCOLS, Protocol
from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.models.prompts import PromptBuilder
from guiderail.progress import Progress
from guiderail.rollout.engines.hf import HfEngine
from guiderail.stages import paths
from guiderail.stages.context import StageContext

CODE = ("actions", "bench", "models", "rewards", "rollout", "seeds.py", "stages/evaluate_recorded.py", "tasks")
WORKERS = 32


def play(ctx: StageContext, subjects: list[bench.Subject], benchmark: str, cache: Path) -> dict[str, bench.Result]:
    """Results of all subjects, and their lines in `ctx.out`, with summaries in recorded.json."""
    protocol, p = PROTOCOLS[benchmark], ctx.params.evaluate
    own = benchmark == "sop"
    trials = recorded.own_trials(paths.demos() / "recorded", p) if own else recorded.android_trials(p, protocol)
    frames = ctx.work / "frames"
    frames.mkdir(exist_ok=True)
    results: dict[str, bench.Result] = {}
    summaries: dict[str, Any] = {}
    with ctx.progress(len(trials.recordings) * len(subjects), "trajectories") as bar:
        for subject in subjects:
            lines, result = _measure(ctx, subject, trials, protocol, cache / "recorded", bar)
            _keep_frames(trials, lines, result, p.film_strips, frames)
            results[subject.name] = replace(result, frames=frames)
            by_split: dict[str, list[dict[str, Any]]] = {}
            for line in lines:
                by_split.setdefault(trials.tasks[line["episode_id"]].split, []).append(line)
            summaries[subject.name] = {
                split: sop_metrics.summary(part, draws=p.bootstrap, confidence=p.confidence)
                for split, part in by_split.items()
            }
    codec = get_codec(ctx.params.prompt.codec)
    at_best = expressible.ceiling(trials.recordings, lambda s: expressible.sayable(s, codec, trials.rules))
    if at_best["lost"]:
        gaps = ", ".join(f"{n} {kind}" for kind, n in at_best["lost"].items())
        ctx.say(f"codec {codec.name} cannot say {gaps} of {at_best['steps']} expected actions; recorded.json has more")
    found = {"protocol": protocol, "data": trials.about, "checkpoints": summaries}
    found["at_best"] = {"codec": codec.name} | at_best
    (ctx.out / "recorded.json").write_text(json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return results


def identity(ctx: StageContext, subject: bench.Subject, trials: recorded.Trials) -> dict[str, Any]:
    """Everything that can change a line but the recordings and the rules they are played by."""
    p = ctx.params
    return {
        "checkpoint": bench.checkpoint_digest(subject.folder),
        "prompt": p.prompt.model_dump(mode="json"),
        "temperature": p.evaluate.temperature,
        "seed": subject.seed if p.evaluate.temperature > 0 else 0,
        "dtype": p.model.dtype,
        "frames": trials.about.get("frames_sha256", ""),
        "code": bench.code_digest(CODE),
    }


def _measure(
    ctx: StageContext,
    subject: bench.Subject,
    trials: recorded.Trials,
    protocol: Protocol,
    cache: Path,
    bar: Progress,
) -> tuple[list[dict[str, Any]], bench.Result]:
    p, started = ctx.params, time.perf_counter()
    who = identity(ctx, subject, trials)
    digest = sop.config_digest(trials.recordings, who, protocol, "guiderail", trials.rules)
    file, shown = cache / f"{digest[:32]}.jsonl", 0
    cache.mkdir(parents=True, exist_ok=True)

    def done(finished: int, total: int) -> None:
        nonlocal shown
        bar.update(finished - shown, checkpoint=subject.name)
        shown = finished

    with FileLock(f"{file}.lock"):
        known = sop.Lines(file, digest)
        known.read()
        remembered = all(r.id in known.rows and known.rows[r.id]["error"] is None for r in trials.recordings)
        lines = [known.rows[r.id] for r in trials.recordings] if remembered else []
        if not remembered:
            policy, frames = load_policy(subject.folder, p.model), FrameStore(None)
            builder = PromptBuilder(policy.tokenizer, p.prompt, policy.image_tokens, policy.resized)
            with Batcher(HfEngine(policy, frames)) as batcher:
                predict = PolicyPredict(batcher, builder, frames, trials.png, p.evaluate.temperature, subject.seed)
                options: dict[str, Any] = {"protocol": protocol, "rules": trials.rules}
                lines = sop.run(trials.recordings, predict, file, who, workers=WORKERS, done=done, **options)
    done(len(trials.recordings), len(trials.recordings))
    shutil.copyfile(file, ctx.out / f"{subject.name}.jsonl")
    rows = recorded.table(lines, trials, subject.name)
    steps, tokens = int(rows["steps"].sum()), int(rows["tokens"].sum())
    return lines, bench.Result(
        rows, {}, steps, tokens, time.perf_counter() - started, cache, [], remembered, replay_steps=steps
    )


def _keep_frames(
    trials: recorded.Trials, lines: list[dict[str, Any]], result: bench.Result, count: int, folder: Path
) -> None:
    """Put the frames of `count` trajectories that are worth a look into `folder`, as <sha256>.png."""
    chosen = {task for _, task, _ in bench.choose_strips(result.rows, count)}
    by_id = {r.id: r for r in trials.recordings}
    for line in lines:
        if trials.tasks[line["episode_id"]].id in chosen:
            for said, step in zip(line["steps"], by_id[line["episode_id"]].steps, strict=False):
                (folder / f"{said['frame']}.png").write_bytes(trials.png(step.frame))
