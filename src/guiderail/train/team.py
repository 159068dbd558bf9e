"""The seam between the training loop and how many processes run it: one (here), or several (`train.distributed`).

Guarantees: the loop is written once; with one process it does what it did without a team, to the bit. With several,
every process walks through the same loop over the same episodes, runs its share of the micro-batches, and ends each
step with the same numbers. Imports nothing of torch.distributed or Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from guiderail.checkpoints.save import State, load_state, save_state
from guiderail.models.features import Frames
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow
from guiderail.params_train import Layout
from guiderail.train.batch import microbatches
from guiderail.train.gates import feature_counter
from guiderail.train.optim import Learner

Part = list[int]
PerRow = Mapping[int, Tensor]


class Team(Protocol):
    """The processes that train one model together."""

    leads: bool
    """Whether this process writes what there is to write once."""

    def parts(self, rows: Sequence[ChunkRow], index: Sequence[int], size: int, layout: Layout = "padded") -> list[Part]:
        """`index` cut into micro-batches of at most `size` rows, alike in all processes."""
        ...

    def mine(self, parts: list[Part]) -> Iterator[tuple[Part, bool]]:
        """The micro-batches to run here, as many in every process; False marks one that only keeps step with the
        others and must count for nothing."""
        ...

    def merged(self, values: PerRow) -> dict[int, Tensor]:
        """Values of the rows of all processes, in all of them."""
        ...

    def sums(self, *values: float) -> tuple[float, ...]:
        """Each value summed over the processes, in all of them."""
        ...

    def counter(self, policy: Policy, frames: Frames) -> Callable[[str], int]:
        """Frame digest -> image tokens that the policy has for it (`gates.check_rows`)."""
        ...

    def save(self, folder: Path, step: int, learner: Learner, meta: dict[str, Any]) -> None:
        """Publish a resumable state, whole or not at all."""
        ...

    def load(self, folder: Path, learner: Learner) -> tuple[int, dict[str, Any]] | None:
        """Restore the newest state into `learner`; (step, meta), or None when there is none."""
        ...


class Alone:
    """A team of one: this process."""

    leads = True

    def parts(self, rows: Sequence[ChunkRow], index: Sequence[int], size: int, layout: Layout = "padded") -> list[Part]:
        """See `Team`."""
        return microbatches(rows, index, size, layout)

    def mine(self, parts: list[Part]) -> Iterator[tuple[Part, bool]]:
        """See `Team`."""
        return ((part, True) for part in parts)

    def merged(self, values: PerRow) -> dict[int, Tensor]:
        """See `Team`."""
        return dict(values)

    def sums(self, *values: float) -> tuple[float, ...]:
        """See `Team`."""
        return values

    def counter(self, policy: Policy, frames: Frames) -> Callable[[str], int]:
        """See `Team`."""
        return feature_counter(policy, frames)

    def save(self, folder: Path, step: int, learner: Learner, meta: dict[str, Any]) -> None:
        """See `Team`."""
        save_state(folder, State(step, {"weights": learner.weights(), "optimizer": learner.state()}, meta))

    def load(self, folder: Path, learner: Learner) -> tuple[int, dict[str, Any]] | None:
        """See `Team`."""
        state = load_state(folder)
        if state is None:
            return None
        learner.load(state.tensors["weights"], state.tensors["optimizer"])
        return state.step, state.meta
