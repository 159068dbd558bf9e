"""What stage rl leaves, wherever it trained: checkpoint/, rollouts/, schedule.jsonl and metrics.json.

Guarantees: both ways of training write the same files from the same numbers. Runs once, after the last phase.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from guiderail.params_train import Rl
from guiderail.stages.collection import join_schedules
from guiderail.stages.context import StageContext
from guiderail.train.metrics import Totals, joined
from guiderail.train.start import Finished, Start, write_checkpoint, write_json


def told(m: Mapping[str, float]) -> dict[str, float | str]:
    """What of an iteration's metrics stands beside the bar, by name."""
    names = {"success": "success", "rows_kept": "rows", "env_steps_per_s": "env steps/s", "logprob_gap_max": "gap"}
    return {name: m[key] for key, name in names.items() if key in m}


def publish(
    ctx: StageContext,
    trained: Start | Finished,
    last: Rl,
    found: Sequence[Totals],
    works: Sequence[Path],
    *,
    tasks: dict[str, Any],
    recipe: str,
) -> None:
    """Write the stage's outputs. last: the last phase; found, works: what each phase used, and its attempt folder."""
    totals = joined(found)
    write_checkpoint(
        ctx.out / "checkpoint",
        trained,
        last,
        stage="rl",
        seed=ctx.seed,
        tasks=tasks,
        trained=totals.trained_on,
        recipe=recipe,
    )
    shutil.copytree(ctx.work / "rollouts", ctx.out / "rollouts")
    join_schedules([work / "schedule.jsonl" for work in works], ctx.out / "schedule.jsonl")
    write_json(ctx.out / "metrics.json", {k: v for k, v in totals.to_json().items() if k != "trained_on"})
