"""Token losses of policy optimisation and the weights that add them up.

Guarantees: pure functions on tensors, one value per sampled token, no masks and no padding (callers pass flat span
tokens). Every aggregation is a weight per token that sums to 1 over the mini-batch, so a mini-batch may be cut into
micro-batches
anywhere: the sum of the micro-batch losses is the loss of the mini-batch, and so are the gradients.
Does not run a model and does not choose coefficients.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "row_mean", "trajectory_mean"]


def clipped_policy_loss(
    logp: Tensor, logp_old: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate on token ratios; returns (loss [n], clipped [n] bool).

        rho = exp(logp - logp_old)
        loss = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)

    Source: Schulman et al. 2017 (arXiv 1707.06347) equation 7, per token as in DeepSeekMath (arXiv 2402.03300)
    equation 3, with the two clip widths of DAPO (arXiv 2503.14476, section 3.1 "Clip-Higher"). `clipped` marks tokens
    whose gradient the clip removed.

    logp, logp_old, advantage: [n] float; the gradient flows through logp alone (logp_old and advantage are constants).
    """
    ratio = torch.exp(logp - logp_old.detach())
    adv = advantage.detach()
    loss = -torch.minimum(ratio * adv, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * adv)
    clipped = ((adv > 0) & (ratio > 1.0 + clip_high)) | ((adv < 0) & (ratio < 1.0 - clip_low))
    return loss, clipped.detach()


def entropy_loss(entropy: Tensor, coef: float) -> Tensor:
    """Entropy bonus as a loss: -coef * H per token, H = -sum_v p_v log p_v over the full vocabulary (Mnih et al.
    2016, section 4)."""
    return -coef * entropy


def token_weights(mode: Aggregation, row_index: Tensor, trajectory_of_row: Tensor) -> Tensor:
    """Weight of every token in the loss of one mini-batch; they sum to 1 (0 tokens -> an empty tensor).

        token_mean:       1 / N                            all tokens alike (DAPO; TRL "bnpo"/"dapo"; verl "token-mean")
        row_mean:         1 / (R * tokens of the row)      rows alike (DeepSeekMath eq. 3; TRL "grpo")
        trajectory_mean:  1 / (T * tokens of the episode)  episodes alike, however many chunks and steps they have

    N, R, T count the tokens, rows and trajectories present in `row_index`: dropped rows are not part of the
    denominator.
    row_index: int64 [n], row of each token, values in [0, rows). trajectory_of_row: int64 [rows]. Returns float32 [n]
    on the same device.
    """
    if row_index.numel() == 0:
        return torch.zeros(0, device=row_index.device)
    if mode == "token_mean":
        unit = torch.zeros_like(row_index)
    elif mode == "row_mean":
        unit = row_index
    elif mode == "trajectory_mean":
        unit = trajectory_of_row.to(row_index.device)[row_index]
    else:
        raise ValueError(f"aggregation {mode!r}: must be token_mean, row_mean or trajectory_mean")
    _, inverse, counts = torch.unique(unit, return_inverse=True, return_counts=True)
    weights: Tensor = 1.0 / (counts.double() * len(counts))
    return weights[inverse].float()
