"""The loss of sampled tokens that `params.Rl` asks for, put together from `algorithms.losses` and `algorithms.kl`.

Guarantees: one value per token, before the weights that add them up; a constant (advantage, old, behaviour and
reference log-probs) gets no gradient. Does not run a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from guiderail.algorithms.kl import kl_estimate
from guiderail.algorithms.losses import clipped_surrogate, entropy_loss, importance_ratio, truncated_importance
from guiderail.models.rows import ChunkRow
from guiderail.params_train import Rl


@dataclass(frozen=True)
class Constants:
    """What the update compares with, per token [n], on the policy's device: log-probs at rollout, under the weights
    before the first update (None: the rollout's count as these), under the reference (None: no KL), and advantages."""

    behaviour: Tensor
    proximal: Tensor | None
    reference: Tensor | None
    advantage: Tensor


def sequences(rows: Sequence[ChunkRow]) -> Tensor:
    """Completion that each sampled token of `rows` belongs to, int64 [tokens], numbered from 0 in row then span order.

    A sequence of GSPO is one completion (one span): what the policy was asked for once.
    """
    lengths = torch.tensor([end - start for r in rows for start, end in r.spans], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def token_loss(
    logp: Tensor, entropy: Tensor | None, known: Constants, rows: Sequence[ChunkRow], rl: Rl
) -> tuple[Tensor, Tensor]:
    """(loss [n], clipped [n] bool) of the sampled tokens of `rows`::

        w * surrogate(policy / old) + kl_coef * KL(policy || reference) - entropy_coef * H

    old = proximal and w = min(proximal / behaviour, importance_cap) with `rl.importance_cap`; else old = behaviour and
    w = 1. entropy: [n], needed exactly when `rl.entropy_coef` > 0.
    """
    old = known.behaviour if known.proximal is None else known.proximal
    sequence = sequences(rows).to(logp.device) if rl.ratio == "sequence" else None
    ratio = importance_ratio(logp, old, rl.ratio, sequence)
    token, clipped = clipped_surrogate(ratio, known.advantage, rl.clip_low, rl.clip_high, rl.dual_clip)
    if known.proximal is not None:
        token = token * truncated_importance(known.proximal, known.behaviour, rl.importance_cap)
    if known.reference is not None:
        token = token + rl.kl_coef * kl_estimate(logp, known.reference, rl.kl_estimator, rl.kl_clamp)
    if entropy is not None:
        token = token + entropy_loss(entropy, rl.entropy_coef)
    return token, clipped
