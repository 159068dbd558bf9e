"""Gates before an optimiser step: rows that would train the policy on something it did not see or say are refused.

Guarantees: nothing passes with image tokens that differ from the features of its frames, with spans that do not fit
its log-probs, or (before the first update of an iteration) with |logp_train - logp_rollout| above the tolerance. The
error names the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from guiderail.errors import Explained
from guiderail.models.features import Frames
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow


class GateError(Explained, RuntimeError):
    """A row must not be trained on. The message names the row, what differs and what to check."""


def check_rows(
    rows: Sequence[ChunkRow], names: Sequence[str], image_token_id: int, features: Callable[[str], int]
) -> None:
    """Refuse rows whose tokens, frames and log-probs do not belong together.

    features: frame digest -> number of vision features of that frame. names: how to call each row in an error.
    """
    for row, name in zip(rows, names, strict=True):
        tokens, wanted = int((row.ids == image_token_id).sum()), sum(features(f) for f in row.frames)
        if tokens != wanted:
            raise GateError(
                f"row {name}: {tokens} image tokens but {wanted} features in its {len(row.frames)} frames; "
                "prompt and training would see different pictures (was the row cut, or the frame resized?)"
            )
        sampled = sum(end - start for start, end in row.spans)
        if not row.spans or sampled != len(row.logprobs):
            raise GateError(f"row {name}: {sampled} tokens in {len(row.spans)} spans, {len(row.logprobs)} log-probs")
        if any(not 0 < start < end <= len(row.ids) for start, end in row.spans):
            raise GateError(f"row {name}: spans {row.spans} do not lie inside its {len(row.ids)} tokens")


@dataclass(frozen=True)
class LogprobGap:
    """|logp_train - logp_rollout| over the sampled tokens of a batch, in nats."""

    max: float
    mean: float


def check_logprobs(
    train: Tensor, rollout: Tensor, row_index: Tensor, names: Sequence[str], tolerance: float
) -> LogprobGap:
    """Refuse a batch whose log-probs under the trainer differ from those under the rollout engine by more than
    `tolerance` nats.

    train, rollout: [n] log-probs of the same tokens at the same temperature and weights; row_index: [n] int64 into
    names. A log-prob that is not finite fails. Call it before the first update on the rows only: afterwards they
    rightly differ.
    """
    if train.numel() == 0:
        return LogprobGap(0.0, 0.0)
    gap = (train.detach().double() - rollout.double()).abs()
    worst = int(torch.nan_to_num(gap, nan=np.inf).argmax())
    if not gap[worst] <= tolerance:
        row = int(row_index[worst])
        token = int((row_index[:worst] == row).sum())
        raise GateError(
            f"row {names[row]}: sampled token {token} has log-prob {train[worst].item():.6f} in training and "
            f"{rollout[worst].item():.6f} at rollout, |difference| {gap[worst].item():.3g} > {tolerance:g}; "
            "the trainer does not score what the policy sampled (weights, temperature, masks or frames differ)"
        )
    return LogprobGap(gap[worst].item(), gap.mean().item())


def feature_counter(policy: Policy, frames: Frames) -> Callable[[str], int]:
    """Frame digest -> number of vision features the trainer has for it."""
    counts: dict[str, int] = {}

    def count(sha: str) -> int:
        if sha not in counts:
            with torch.no_grad():
                counts[sha] = policy.features.get([sha], frames)[0].cells
        return counts[sha]

    return count
