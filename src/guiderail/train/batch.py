"""From finished episodes to training rows with advantages, and how rows are cut into mini-batches and micro-batches.

Guarantees: an episode without a measured outcome takes no part in any baseline; rows of zero advantage are dropped
before batching; an episode's rows stay in one mini-batch; orders come from seeds. Does not look at pixels or weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from guiderail.algorithms.grouping import FloatArray
from guiderail.algorithms.grpo import GroupAdvantages, group_advantages
from guiderail.models.rows import ChunkRow
from guiderail.params_train import Layout, Rl
from guiderail.rollout.types import Episode
from guiderail.train.seeds import shuffled
from guiderail.train.steps import step_advantages, trajectory_returns

SPREAD = 1.25
"""Longest over shortest row of a micro-batch."""


@dataclass(frozen=True)
class Batch:
    """Rows to train on. Entry i of each list belongs to row i; `episode[i]` indexes the episodes the batch was made
    from.

    advantage: float64 [rows]; what every completion of the row gets, unless `by_step` holds one number per completion
    of each row (step-level methods; then `advantage` is their mean). Rows without any advantage but 0 are left out.
    rewards: float64 of all episodes, nan where not measured. groups: what the episodes' groups are worth (under
    semi_online, of the trajectories' statistic). version: of the weights that sampled each row. metrics: of the
    algorithm, for the curves. group: number of each row's group.
    """

    rows: list[ChunkRow]
    names: list[str]
    advantage: FloatArray
    episode: list[int]
    rewards: FloatArray
    groups: GroupAdvantages
    version: list[int]
    by_step: list[FloatArray] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    group: list[int] = field(default_factory=list)

    def units(self, layout: Layout) -> list[int]:
        """What a mini-batch may not split, per row: its episode; packed: its group, whose rows begin alike."""
        return self.episode if layout == "padded" else self.group

    def token_advantage(self, index: Sequence[int]) -> Tensor:
        """Advantage of every sampled token of the rows `index`, in row then span order, float32 [tokens]."""
        parts = []
        for i in index:
            lengths = [end - start for start, end in self.rows[i].spans]
            values = np.full(len(lengths), self.advantage[i]) if self.by_step is None else self.by_step[i]
            parts.append(np.repeat(values, lengths))
        return torch.from_numpy(np.concatenate(parts).astype(np.float32))

    def tokens(self, index: Sequence[int]) -> Tensor:
        """Number of sampled tokens of the rows `index`, int64 [len(index)]."""
        return torch.tensor([len(self.rows[i].logprobs) for i in index], dtype=torch.int64)

    def behaviour(self, index: Sequence[int]) -> Tensor:
        """Behaviour log-probs of the rows `index`, concatenated, float32 [tokens]."""
        return torch.from_numpy(np.concatenate([self.rows[i].logprobs for i in index]).astype(np.float32))


def rewards_of(episodes: Sequence[Episode], failure: float) -> FloatArray:
    """1 for success, `failure` for failure, nan for infrastructure and judge errors; float64 [episodes]."""
    value = {"success": 1.0, "failure": failure}
    return np.array([value.get(e.outcome.kind, np.nan) for e in episodes], dtype=np.float64)


def make_batch(episodes: Sequence[Episode], rl: Rl) -> Batch:
    """Advantages of all episodes (`algorithms.grpo`) or of all their steps (`train.steps`), and the rows in which one
    is not 0."""
    rewards = rewards_of(episodes, rl.reward_failure)
    found = group_advantages(
        rewards if rl.algorithm != "semi_online" else trajectory_returns(episodes, rewards, rl),
        [e.group for e in episodes],
        ~np.isnan(rewards),
        scale=rl.scale,
        baseline=rl.baseline,
        ddof=rl.ddof,
    )
    rows = [(i, k) for i, e in enumerate(episodes) for k in range(len(e.rows))]
    metrics: dict[str, float] = {}
    if rl.algorithm == "grpo":
        kept, by_step = [(i, k) for i, k in rows if found.values[i] != 0.0], None
        advantage = np.array([found.values[i] for i, _ in kept], dtype=np.float64)
    else:
        of_steps = step_advantages(episodes, rewards, rl)
        metrics = of_steps.metrics
        spans = {(i, k): _of_row(episodes[i], k, of_steps.values[i]) for i, k in rows}
        kept = [at for at in rows if (spans[at] != 0.0).any()]
        by_step = [spans[at] for at in kept]
        advantage = np.array([v.mean() for v in by_step], dtype=np.float64)
    number = {g: n for n, g in enumerate(dict.fromkeys(e.group for e in episodes))}
    return Batch(
        rows=[episodes[i].rows[k] for i, k in kept],
        names=[f"{episodes[i].id} chunk {k}" for i, k in kept],
        advantage=advantage,
        episode=[i for i, _ in kept],
        rewards=rewards,
        groups=found,
        version=[episodes[i].steps[0].policy_version for i, _ in kept],
        by_step=by_step,
        metrics=metrics,
        group=[number[episodes[i].group] for i, _ in kept],
    )


def _of_row(episode: Episode, chunk: int, values: FloatArray) -> FloatArray:
    """Advantages of the completions of row `chunk`, from those of all steps of the episode."""
    place = {s.step: k for k, s in enumerate(episode.steps)}
    return values[[place[step] for step in episode.rows[chunk].steps]]


def minibatches(unit_of_row: Sequence[int], size: int, *seed: str | int) -> list[list[int]]:
    """Row indices in mini-batches of about `size` rows: units (episodes, or groups) in seeded order, never split, a
    batch closed once it has `size` rows.

    A last batch smaller than half of `size` joins the one before it, so that no step is taken on a handful of rows.
    """
    of: dict[int, list[int]] = {}
    for row, unit in enumerate(unit_of_row):
        of.setdefault(unit, []).append(row)
    batches: list[list[int]] = []
    for unit in shuffled(sorted(of), *seed):
        if not batches or len(batches[-1]) >= size:
            batches.append([])
        batches[-1] += of[unit]
    if len(batches) > 1 and 2 * len(batches[-1]) < size:
        tail = batches.pop()
        batches[-1] += tail
    return batches


def microbatches(
    rows: Sequence[ChunkRow], index: Sequence[int], size: int, layout: Layout = "padded"
) -> list[list[int]]:
    """`index` in pieces of at most `size` rows, one forward each.

    padded: sorted by length, the longest of a piece at most `SPREAD` times the shortest, for padding is computed like
    any token. packed: sorted so that rows which begin alike are neighbours.
    """
    if layout == "packed":
        order = sorted(index, key=lambda i: (rows[i].frames[:1], rows[i].ids.astype(">u4").tobytes(), i))
        return [order[k : k + size] for k in range(0, len(order), size)]
    parts: list[list[int]] = []
    for i in sorted(index, key=lambda i: (len(rows[i].ids), i)):
        if not parts or len(parts[-1]) >= size or len(rows[i].ids) > SPREAD * len(rows[parts[-1][0]].ids):
            parts.append([])
        parts[-1].append(i)
    return parts
