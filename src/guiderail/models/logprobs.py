"""Log-probs of sampled tokens: where in a forward over rows they are read, and what is read there.

Guarantees: tokens in row, then span order; nothing after a row's last span is asked for, and logits only where they
predict a span's token; log-probs and entropy are of the distribution that the logits give as they are (so masked and
divided by the temperature beforehand). Runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from guiderail.models.attention import RowMismatch, image_runs
from guiderail.models.inputs import Row
from guiderail.models.packing import Plan
from guiderail.models.rows import ChunkRow


class LogProbs(NamedTuple):
    """Per span token: log-prob, entropy of its distribution in nats (zeros unless asked for), index of its row, and
    whether it is the likeliest token.
    """

    logp: torch.Tensor
    entropy: torch.Tensor
    row_index: torch.Tensor
    greedy: torch.Tensor


@dataclass(frozen=True)
class Asked:
    """What a forward has to run, and which of its logits are wanted.

    inputs: per row what predicts its spans; at: per row the tokens in it that predict a span's token, int64. Of the N
    span tokens of all rows: targets int64 [N], their ids; scale float32 [N], what divides their logits; row_index
    int64 [N].
    """

    inputs: list[Row]
    at: list[np.ndarray]
    targets: np.ndarray
    scale: np.ndarray
    row_index: np.ndarray

    def places(self, layout: Plan | None) -> np.ndarray:
        """Where the predicting tokens stand, int64 [N]: in their row, or on the flat axis of `layout`."""
        if layout is None:
            return np.concatenate(self.at)
        return np.concatenate([places[tokens] for places, tokens in zip(layout.places, self.at, strict=True)])


def ask(rows: Sequence[ChunkRow], image_token: int, temperature: float | None) -> Asked:
    """What to run for the span tokens of `rows`. temperature: 0 counts as 1, as in sampling; None = each row's own.

    Raises RowMismatch for a row whose image tokens do not match its frames, ValueError for an empty or leading span.
    """
    inputs: list[Row] = []
    at, targets, scale, row_index = [], [], [], []
    for i, row in enumerate(rows):
        if not row.spans or min(s for s, _ in row.spans) < 1 or max(e for _, e in row.spans) > len(row.ids):
            raise ValueError(f"row {i}: spans {row.spans} do not lie in [1, {len(row.ids)}]; rebuild the row")
        inputs.append(_until_last_span(row, image_token, f"row {i}"))
        span_at = np.concatenate([np.arange(s, e) for s, e in row.spans])
        at.append(span_at - 1)
        targets.append(row.ids[span_at])
        scale.append(
            np.full(len(span_at), (row.temperature if temperature is None else temperature) or 1.0, np.float32)
        )
        row_index.append(np.full(len(span_at), i))
    return Asked(inputs, at, np.concatenate(targets), np.concatenate(scale), np.concatenate(row_index))


def read(logits: torch.Tensor, target: torch.Tensor, row_index: torch.Tensor, entropy: bool) -> LogProbs:
    """Log-probs of the ids `target` [N] under logits [N, V]; row_index is passed on. entropy: compute it too."""
    lse = torch.logsumexp(logits, dim=-1)
    logp = logits.gather(1, target[:, None]).squeeze(1) - lse
    greedy = logits.detach().argmax(-1) == target
    if not entropy:
        return LogProbs(logp, torch.zeros_like(logp), row_index, greedy)
    ent = lse - (torch.softmax(logits, dim=-1) * logits).sum(-1)  # H = lse - sum p * logit
    return LogProbs(logp, ent, row_index, greedy)


def _until_last_span(row: ChunkRow, image_token: int, label: str) -> Row:
    """The tokens that predict the row's spans, with their frames: nothing after the last span is run."""
    runs = image_runs(row.ids, image_token)
    if len(runs) != len(row.frames):
        raise RowMismatch(
            f"{label}: {len(runs)} image token runs in the ids, {len(row.frames)} frames listed; rebuild the row"
        )
    end = max(e for _, e in row.spans) - 1
    return row.ids[:end], row.frames[: sum(e <= end for _, e in runs)]
