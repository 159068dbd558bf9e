"""What the trainer made of each episode, beside the episodes: its advantages and its own log-probs.

Guarantees: one table `training.parquet` (a folder of parts, as in `rollout.store`) with one row per trained step, and
one row with step -1 per episode, whether it was trained on or not; `advantage` is null where an episode took no part
(an infrastructure or judge error), `logprobs` is null where the trainer scored nothing. Log-probs are those of the
weights that are about to be updated, in the order of the step's sampled tokens. Nothing reads it back into training.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from guiderail.rollout.types import Episode
from guiderail.train.batch import Batch

SCHEMA = pa.schema(
    {"episode_id": pa.string(), "step": pa.int32(), "iteration": pa.int32(), "advantage": pa.float64()}
    | {"logprobs": pa.list_(pa.float32())}
)


def trace_rows(
    episodes: Sequence[Episode], batch: Batch, logp: Sequence[Tensor], iteration: int
) -> list[dict[str, Any]]:
    """Rows of SCHEMA. episodes: those the batch was made from, in order; logp: per row of the batch, float32 [tokens of
    the row]."""
    found: list[dict[str, Any]] = []
    values = batch.groups.values
    if batch.by_step is not None:  # step-level methods: an episode's is the mean over its steps that count
        of: dict[int, list[float]] = {}
        for i, own in zip(batch.episode, batch.by_step, strict=True):
            of.setdefault(i, []).extend(own.tolist())
        values = np.array([np.mean(of.get(i, [0.0])) for i in range(len(episodes))])
    for e, reward, advantage in zip(episodes, batch.rewards, values, strict=True):
        value = None if np.isnan(reward) else float(advantage)
        found.append({"episode_id": e.id, "step": -1, "iteration": iteration, "advantage": value, "logprobs": None})
    for i, row in enumerate(batch.rows):
        lengths = [end - start for start, end in row.spans]
        parts = np.split(logp[i].detach().float().numpy(), np.cumsum(lengths)[:-1])
        by_step = [float(batch.advantage[i])] * len(lengths) if batch.by_step is None else batch.by_step[i].tolist()
        for step, advantage, part in zip(row.steps, by_step, parts, strict=True):
            found.append(
                {
                    "episode_id": episodes[batch.episode[i]].id, "step": step, "iteration": iteration,
                    "advantage": float(advantage), "logprobs": part,
                }
            )  # fmt: skip
    return found


def write_trace(folder: Path, rows: list[dict[str, Any]], part: int) -> None:
    """Write the part of an iteration (the number of its first rollout part), whole or not at all; writing it again
    replaces it."""
    path = folder / "training.parquet" / f"part-{part:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), beside, compression="zstd")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
