"""One row per evaluated episode: the table between evaluation and report.

Guarantees: `success` and `reward` are empty exactly where the episode was not measured (infrastructure or judge error),
so that such an episode can enter no mean by accident. Texts are the model's own and unescaped: whoever shows them
escapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from guiderail.bench.stats import Outcomes
from guiderail.rollout.types import Episode

COLUMNS: dict[str, str] = {
    "checkpoint": "string",  # base, sft, rl
    "split": "string",  # train, fresh, heldout
    "suite": "string",
    "template": "string",
    "domain": "string",
    "task": "string",  # TaskSpec.id
    "episode": "Int64",  # 0, 1, ... when an instance is run more than once
    "instruction": "string",
    "success": "boolean",
    "reward": "Float64",
    "kind": "string",  # success, failure, infra_error, judge_error
    "cause": "string",
    "detail": "string",
    "attempt": "Int64",  # infrastructure re-samples before this one
    "steps": "Int64",
    "parse_failures": "Int64",
    "tokens": "Int64",  # sampled tokens (sum of ids)
    "seconds": "Float64",  # policy and environment, waiting for siblings included
    "thoughts": "string",  # JSON list, one per step
    "actions": "string",  # JSON list of canonical action JSON ("" where nothing could be read)
    "texts": "string",  # JSON list of what the model wrote
    "problems": "string",  # JSON list: why an answer could not be read or done, "" where it could
    "ids": "string",  # JSON list, one list of token ids as sampled per step
    "logprobs": "string",  # JSON list, their log-probs at sampling, to 6 decimals
    "matched": "string",  # JSON list: whether each step did what was recorded; empty where nothing was
    "frames": "string",  # JSON list: sha256 of the frame seen at each step
    "last_frame": "string",
    "side_effects": "string",  # JSON list: what changed beside what was asked for; empty where nobody looked
}


def row(episode: Episode, checkpoint: str, number: int = 0) -> dict[str, Any]:
    """The table row of a finished episode."""
    task, outcome, steps = episode.task, episode.outcome, episode.steps
    measured = outcome.kind in ("success", "failure")
    return {
        "checkpoint": checkpoint,
        "split": task.split,
        "suite": task.suite,
        "template": task.template,
        "domain": task.domain,
        "task": task.id,
        "episode": number,
        "instruction": episode.instruction,
        "success": outcome.kind == "success" if measured else None,
        "reward": outcome.reward if measured else None,
        "kind": outcome.kind,
        "cause": outcome.cause,
        "detail": outcome.detail,
        "attempt": episode.attempt,
        "steps": len(steps),
        "parse_failures": sum(bool(s.parse_error) for s in steps),
        "tokens": sum(len(s.completion.ids) for s in steps),
        "seconds": sum(s.seconds_policy + s.seconds_env for s in steps),
        "thoughts": json.dumps([s.thought for s in steps]),
        "actions": json.dumps([s.action for s in steps]),
        "texts": json.dumps([s.completion.text for s in steps]),
        "problems": json.dumps([s.parse_error for s in steps]),
        "ids": json.dumps([s.completion.ids for s in steps]),
        "logprobs": json.dumps([rounded(s.completion.logprobs) for s in steps]),
        "matched": None,
        "frames": json.dumps([s.frame for s in steps]),
        "last_frame": episode.last_frame,
        "side_effects": None if episode.side_effects is None else json.dumps(episode.side_effects),
    }


def rounded(logprobs: Sequence[float]) -> list[float]:
    """Log-probs as records keep them: their last bits depend on what shared a batch, and would only cost space."""
    return [round(x, 6) for x in logprobs]


def table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a typed frame, in a fixed order whatever order the episodes ended in."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)
    return frame.sort_values(["checkpoint", "split", "task", "episode"], kind="stable", ignore_index=True)


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that carry a result."""
    return frame[frame["success"].notna()]


def outcomes(frame: pd.DataFrame) -> Outcomes:
    """{task id: success} of the measured rows (mean over the episodes of an instance that was run more than once)."""
    rows = measured(frame)
    means = rows["success"].astype(float).groupby(rows["task"].astype(str)).mean()
    return {str(task): float(value) for task, value in means.items()}


def excluded(frame: pd.DataFrame) -> dict[str, int]:
    """How many rows carry no result, by "kind/cause"."""
    rows = frame[frame["success"].isna()]
    names = rows["kind"].astype(str) + "/" + rows["cause"].astype(str)
    return {str(name): int(count) for name, count in names.value_counts().sort_index().items()}
