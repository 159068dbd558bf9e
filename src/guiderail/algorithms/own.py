"""An RL algorithm of the user's own: a pure function from the steps of an update to one advantage each.

Guarantees: the function gets arrays only, sees no reward of an episode that was not measured (nan), and its answer is
checked: one finite number a step, 0 where nothing was measured. Losses, clipping, KL and batching stay those of
params.yaml (`rl`); the function decides what is compared with what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StepTable:
    """The steps of all episodes of an update, one entry a step, episodes one after the other.

    reward: of the step's episode, nan where not measured, float64 [n]. group: number of its group (siblings share it),
    int64 [n]. episode: number of its episode, int64 [n]. step: its place in the episode, from 0, int64 [n].
    """

    reward: FloatArray
    group: NDArray[np.int64]
    episode: NDArray[np.int64]
    step: NDArray[np.int64]

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Whether the episode of each step has a reward, bool [n]."""
        return ~np.isnan(self.reward)


Advantages = Callable[[StepTable, Mapping[str, float]], FloatArray]


@dataclass(frozen=True)
class Algorithm:
    """What a file of `plugins/algorithms` defines as ALGORITHM. `options`: names and defaults of `rl.options`."""

    advantages: Advantages
    options: Mapping[str, float] = field(default_factory=dict)

    def of(self, table: StepTable, options: Mapping[str, float]) -> FloatArray:
        """Advantages of all steps, checked, float64 [n]. Raises ValueError saying what is wrong with them."""
        found = np.asarray(self.advantages(table, {**self.options, **options}), dtype=np.float64)
        if found.shape != table.reward.shape:
            raise ValueError(f"advantages of shape {found.shape} for {len(table.reward)} steps; give one number a step")
        found = np.where(table.measured, found, 0.0)
        if not np.isfinite(found).all():
            at = int(np.flatnonzero(~np.isfinite(found))[0])
            raise ValueError(f"the advantage of step {table.step[at]} of episode {table.episode[at]} is {found[at]}")
        return found
