"""Token losses of policy optimisation and the weights that add them up.

Guarantees: pure functions on tensors, one value per sampled token, no masks and no padding (callers pass flat span
tokens). Every aggregation is a weight per token, fixed before the mini-batch is cut into micro-batches: the sum of the
micro-batch losses is the loss of the mini-batch, and so are the gradients. The means' weights sum to 1.
Does not run a model and does not choose coefficients.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from guiderail.algorithms.kl import LOG_RATIO_BOUND

Aggregation = Literal["token_mean", "row_mean", "trajectory_mean", "constant"]
Ratio = Literal["token", "sequence"]


def importance_ratio(logp: Tensor, logp_old: Tensor, kind: Ratio = "token", sequence: Tensor | None = None) -> Tensor:
    """Importance ratio of every token, [n].

        token:     rho_t = exp(logp_t - old_t)
        sequence:  rho_t = exp(mean over the tokens of t's sequence of (logp - old)), one number a sequence

    Source of "sequence": Zheng et al. 2025, GSPO (arXiv 2507.18071) equation 7, length-normalised; its clip widths are
    two orders smaller than PPO's (3e-4 and 4e-4 in the paper), since the mean hardly moves. The log-ratio is clamped to
    +-20 (verl's bound), beyond which a token gives no gradient.
    sequence: int64 [n], sequence of each token, values from 0; needed for "sequence".
    """
    log_ratio = logp - logp_old.detach()
    if kind == "sequence":
        if sequence is None:
            raise ValueError("ratio 'sequence' needs the sequence of each token")
        count = int(sequence.max()) + 1 if len(sequence) else 0
        size = torch.bincount(sequence, minlength=count).clamp(min=1).to(log_ratio.dtype)
        log_ratio = (log_ratio.new_zeros(count).index_add(0, sequence, log_ratio) / size)[sequence]
    elif kind != "token":
        raise ValueError(f"ratio {kind!r}: must be token or sequence")
    return torch.exp(log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, clip_low: float, clip_high: float, dual_clip: float = 0.0
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate, with a second clip for bad actions; returns (loss [n], clipped [n] bool).

        loss = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)
        dual_clip c > 1, where A < 0:  loss = min(loss, -c * A)

    Source: Schulman et al. 2017 (arXiv 1707.06347) equation 7, per token as in DeepSeekMath (arXiv 2402.03300)
    equation 3, with the two clip widths of DAPO (arXiv 2503.14476, section 3.1 "Clip-Higher"); dual clip: Ye et al.
    2020 (arXiv 1912.09729) equation 5, which bounds the loss of an action that became likelier though it was bad. 0 =
    no dual clip. `clipped` marks tokens whose gradient a clip removed.

    ratio, advantage: [n] float; the gradient flows through ratio alone. Raises ValueError on a dual clip in (0, 1].
    """
    if dual_clip and dual_clip <= 1.0:
        raise ValueError(f"dual_clip = {dual_clip}: must be 0 (off) or above 1")
    adv = advantage.detach()
    loss = -torch.minimum(ratio * adv, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * adv)
    clipped = ((adv > 0) & (ratio > 1.0 + clip_high)) | ((adv < 0) & (ratio < 1.0 - clip_low))
    if dual_clip:
        loss = torch.where(adv < 0, torch.minimum(loss, -dual_clip * adv), loss)
        clipped = clipped | ((adv < 0) & (ratio > dual_clip))
    return loss, clipped.detach()


def clipped_policy_loss(
    logp: Tensor, logp_old: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """`clipped_surrogate` of token ratios, without dual clip: (loss [n], clipped [n] bool).

    logp, logp_old, advantage: [n] float; the gradient flows through logp alone (logp_old and advantage are constants).
    """
    return clipped_surrogate(importance_ratio(logp, logp_old), advantage, clip_low, clip_high)


def truncated_importance(logp_proximal: Tensor, logp_behaviour: Tensor, cap: float) -> Tensor:
    """Weight of every token that was sampled by another policy than the one the update starts from, [n], constant.

        w = min(exp(logp_proximal - logp_behaviour), cap)

    proximal: the weights before the first update; behaviour: those (and the engine) that sampled. The ratio of the
    surrogate is then policy over proximal, so that a stale or differently rounded rollout is corrected by w and
    the clip bounds the update alone. Source: truncation as in Espeholt et al. 2018, IMPALA (arXiv 1802.01561); the
    split into two ratios: Hilton et al. 2021 (arXiv 2110.00641). Exactly 1 where both are the same numbers (cap >= 1).
    """
    return torch.exp((logp_proximal - logp_behaviour).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)).clamp(max=cap).detach()


def entropy_loss(entropy: Tensor, coef: float) -> Tensor:
    """Entropy bonus as a loss: -coef * H per token, H = -sum_v p_v log p_v over the full vocabulary (Mnih et al.
    2016, section 4)."""
    return -coef * entropy


def token_weights(mode: Aggregation, row_index: Tensor, trajectory_of_row: Tensor, budget: int = 0) -> Tensor:
    """Weight of every token in the loss of one mini-batch (0 tokens -> an empty tensor).

        token_mean:       1 / N                            all tokens alike (DAPO; TRL "bnpo"/"dapo"; verl "token-mean")
        row_mean:         1 / (R * tokens of the row)      rows alike (DeepSeekMath eq. 3; TRL "grpo")
        trajectory_mean:  1 / (T * tokens of the episode)  episodes alike, however many chunks and steps they have
        constant:         1 / (T * budget)                 a long episode weighs what its tokens weigh (Dr. GRPO, TRL
                                                           "dr_grpo": budget = the most tokens an episode may have)

    The first three sum to 1. N, R, T count the tokens, rows and trajectories present in `row_index`: dropped rows are
    not part of the denominator.
    row_index: int64 [n], row of each token, values in [0, rows). trajectory_of_row: int64 [rows]. Returns float32 [n]
    on the same device.
    """
    if row_index.numel() == 0:
        return torch.zeros(0, device=row_index.device)
    if mode == "token_mean":
        unit = torch.zeros_like(row_index)
    elif mode == "row_mean":
        unit = row_index
    elif mode in ("trajectory_mean", "constant"):
        unit = trajectory_of_row.to(row_index.device)[row_index]
    else:
        raise ValueError(f"aggregation {mode!r}: must be token_mean, row_mean, trajectory_mean or constant")
    if mode == "constant":
        if budget < 1:
            raise ValueError(f"aggregation 'constant' divides by a budget of tokens, got {budget}")
        return torch.full(row_index.shape, 1.0 / (len(torch.unique(unit)) * budget), device=row_index.device)
    _, inverse, counts = torch.unique(unit, return_inverse=True, return_counts=True)
    weights: Tensor = 1.0 / (counts.double() * len(counts))
    return weights[inverse].float()
