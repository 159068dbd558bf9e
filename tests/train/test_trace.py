"""What the trainer leaves beside the episodes: its advantages and log-probs, step by step."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import torch

from guiderail.algorithms.grpo import group_advantages
from guiderail.envs.types import Outcome
from guiderail.models.rows import ChunkRow
from guiderail.rollout.types import Episode
from guiderail.tasks.types import TaskSpec
from guiderail.train.batch import Batch
from guiderail.train.trace import trace_rows, write_trace

TASK = TaskSpec("miniwob", "click-test", 1)
REWARDS = np.array([1.0, 0.0, np.nan])


def episodes():
    outcomes = [
        Outcome("success", "env_done", 1.0),
        Outcome("failure", "step_limit", 0.0),
        Outcome("infra_error", "crash"),
    ]
    return [Episode(f"e{i}", "g", i, 0, TASK, "do", o, ()) for i, o in enumerate(outcomes)]


def batch(by_step=None):
    row = ChunkRow(np.arange(9), (), ((2, 4), (6, 9)), np.zeros(5, np.float32), (3, 4))
    groups = group_advantages(REWARDS, ["g"] * 3, ~np.isnan(REWARDS), scale="none", ddof=0)
    return Batch([row], ["e0 chunk 0"], np.array([0.5]), [0], REWARDS, groups, [0], by_step)


def test_one_row_per_step_and_one_per_episode(tmp_path):
    rows = trace_rows(episodes(), batch(), [torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])], 7)
    write_trace(tmp_path, rows, 14)
    found = pq.read_table(tmp_path / "training.parquet").to_pylist()
    heads = [(r["episode_id"], r["advantage"], r["logprobs"]) for r in found if r["step"] == -1]
    assert heads == [("e0", 0.5, None), ("e1", -0.5, None), ("e2", None, None)]  # rewards 1 and 0 around their mean
    steps = [(r["step"], r["advantage"], r["logprobs"]) for r in found if r["step"] >= 0]
    assert steps == [(3, 0.5, [-1.0, -2.0]), (4, 0.5, [-3.0, -4.0, -5.0])]
    assert {r["iteration"] for r in found} == {7} and [p.name for p in (tmp_path / "training.parquet").iterdir()] == [
        "part-00014.parquet"
    ]


def test_step_level_methods_have_an_advantage_for_each_step():
    rows = trace_rows(episodes(), batch([np.array([1.0, -0.5])]), [torch.zeros(5, dtype=torch.bfloat16)], 0)
    assert [r["advantage"] for r in rows] == [0.25, 0.0, None, 1.0, -0.5]
