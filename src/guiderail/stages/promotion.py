"""What an evaluation shows in MLflow beside its means: tables, a few episodes as traces, and the champion's gate.

Guarantees: reads what the stage has measured and writes no output; a champion is compared on the same tasks, on the
first of fresh, held-out and train that was measured, by the report's own paired difference with its interval.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from guiderail.bench import records
from guiderail.bench.evaluate import Result
from guiderail.bench.stats import paired_difference
from guiderail.params import Evaluate
from guiderail.provenance import manifest_digest
from guiderail.rollout.types import Episode
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.tracking_registry import Difference, Measured
from guiderail.tracking_traces import TracedEpisode, TracedStep

SHOWN = (
    "episode",
    "kind",
    "reward",
    "checkpoint",
    "split",
    "template",
    "task",
    "instruction",
    "cause",
    "steps",
    "parse_failures",
)
SPLITS = ("fresh", "heldout", "train")
MOST_ROWS = 5000


def registered_name(suite: str) -> str:
    """The registered model of a suite."""
    return f"guiderail-{suite}"


def show(ctx: StageContext, results: Mapping[str, Result], found: Mapping[str, Any]) -> None:
    """Tables `success` and `episodes`, and traces of the episodes whose frames were kept.

    MLflow's table view groups runs by the first column and compares the second, so these are what names a row and how
    it came out.
    """
    means = [
        {
            "measured": f"{name}, {split}",
            "success": m["success"]["mean"],
            **{k: m["success"][k] for k in ("lo", "hi", "n")},
            "checkpoint": name,
            "split": split,
        }
        for name, c in found["checkpoints"].items()
        for split, m in c["splits"].items()
    ]
    ctx.tracker.table("success", {k: [m[k] for m in means] for k in (means[0] if means else ())})
    rows = pd.concat([r.rows for r in results.values()], ignore_index=True)
    rows["episode"] = rows["checkpoint"].astype(str) + " " + rows["task"].astype(str)
    ctx.tracker.table("episodes", plain(rows[list(SHOWN)].head(MOST_ROWS)))
    for name, result in results.items():
        ctx.tracker.episodes([evaluated(name, result, strip) for strip in result.strips])


def plain(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Columns of JSON values; what is missing is None."""
    return {str(c): [None if pd.isna(v) else v for v in table[c].tolist()] for c in table.columns}


def evaluated(name: str, result: Result, strip: tuple[str, str, int]) -> Callable[[], TracedEpisode]:
    """Makes the trace of one kept episode of a checkpoint."""

    def make() -> TracedEpisode:
        rows = result.rows
        row = rows[(rows["task"] == strip[1]) & (rows["episode"] == strip[2])].iloc[0]
        columns = (json.loads(row[c]) for c in ("frames", "texts", "actions"))
        each = float(row["seconds"]) / max(1, int(row["steps"]))
        steps = [
            TracedStep((result.frames / f"{sha}.png").read_bytes(), text, action, "" if action else "unreadable", each)
            for sha, text, action in zip(*columns, strict=True)
        ]
        tags = {"checkpoint": name, **{k: str(row[k]) for k in ("split", "template", "task", "cause")}}
        reward = None if pd.isna(row["reward"]) else float(row["reward"])
        return TracedEpisode(
            f"{name} {row['template']}", str(row["instruction"]), str(row["kind"]), reward, steps, tags
        )

    return make


def rolled_out(episode: Episode, png: Callable[[str], bytes], iteration: int) -> Callable[[], TracedEpisode]:
    """Makes the trace of an episode of an RL iteration."""

    def make() -> TracedEpisode:
        steps = [
            TracedStep(
                png(s.frame), s.completion.text, s.action, s.parse_error, float(s.seconds_policy + s.seconds_env)
            )
            for s in episode.steps
        ]
        tags = {"checkpoint": "rl", "iteration": str(iteration), "template": episode.task.template}
        tags |= {"split": episode.task.split, "task": episode.task.id, "cause": episode.outcome.cause}
        name = f"rl {episode.task.template}"
        return TracedEpisode(name, episode.instruction, episode.outcome.kind, episode.outcome.reward, steps, tags)

    return make


def gate(ctx: StageContext, results: Mapping[str, Result], head: Mapping[str, Any], p: Evaluate) -> None:
    """Let the merged checkpoint try to become champion of the suite. Recorded benchmarks decide nothing."""
    folder = paths.merge(str(head["recipe"]), str(head["seed"]))
    digest, suite = manifest_digest(folder), str(head["benchmark"])
    if "rl" not in results or digest is None:
        return
    rows = results["rl"].rows
    if not (rows["suite"] == suite).all():
        return
    split = next((s for s in SPLITS if len(records.measured(rows[rows["split"] == s]))), SPLITS[0])
    here = rows[rows["split"] == split]
    ours = records.outcomes(here)
    template = dict(zip(here["task"].astype(str), here["template"].astype(str), strict=True))

    def better(theirs: Mapping[str, float]) -> Difference:
        both = ours.keys() & theirs.keys()
        one, two = ({k: x[k] for k in sorted(both)} for x in (theirs, ours))
        found = paired_difference([one], [two], template, draws=p.bootstrap, confidence=p.confidence)
        return found.mean, found.lo, found.hi, found.n

    measured = Measured(suite, split, str(head["split_hash"]), ours)
    ctx.tracker.promote(folder, registered_name(suite), digest, measured, better)
