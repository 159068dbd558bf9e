"""Merging formulas on single tensors: pure functions, float32 or better.

Guarantees: where all models hold the same values, those come back bit for bit. The sums over tasks, the elected sign
and the disjoint mean are PEFT's (`peft.utils.merge_utils`); the trimming is by one threshold over the whole task
vector, as in the paper, where PEFT's (and mergekit's) is tensor by tensor. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

_HALF = 1 << 16


def _wide(tensors: Sequence[Tensor]) -> list[Tensor]:
    kind = torch.float32
    for t in tensors:
        kind = torch.promote_types(kind, t.dtype)
    return [t.to(kind) for t in tensors]


def average(models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_i w_i theta_i / sum_i w_i.

    Wortsman et al. 2022 (model soups, arXiv 2203.05482), table 2: the uniform soup has equal weights; with two models
    it is interpolation.
    """
    if all(torch.equal(models[0], t) for t in models[1:]):
        return models[0]
    total = torch.zeros_like(_wide(models)[0])
    for tensor, weight in zip(_wide(models), weights, strict=True):
        total += weight * tensor
    return total / sum(weights)


def add_tasks(base: Tensor, models: Sequence[Tensor], weights: Sequence[float], scale: float) -> Tensor:
    """theta_0 + scale * sum_i w_i (theta_i - theta_0).

    Ilharco et al. 2023 (task arithmetic, arXiv 2212.04089), section 2.
    """
    from peft.utils.merge_utils import task_arithmetic

    if all(torch.equal(base, t) for t in models):
        return base
    zero, *ends = _wide([base, *models])
    tasks = [t - zero for t in ends]
    merged: Tensor = task_arithmetic(tasks, torch.tensor(list(weights), dtype=zero.dtype))
    return zero + scale * merged


def add_ties(
    base: Tensor, models: Sequence[Tensor], weights: Sequence[float], scale: float, thresholds: Sequence[float]
) -> Tensor:
    """theta_0 + scale * disjoint mean of the trimmed task vectors.

    Yadav et al. 2023 (TIES, arXiv 2306.01708), algorithm 1, number by number: of tau_i = theta_i - theta_0, numbers
    below the model's threshold in magnitude become 0 (trim); the sign is that of sum_i tau_i, + for a sum of 0
    (elect); the mean of w_i tau_i is taken over the tau_i of that sign alone (merge). thresholds: `threshold` of each
    whole task vector.
    """
    from peft.utils.merge_utils import calculate_majority_sign_mask, disjoint_merge, reshape_weight_task_tensors

    if all(torch.equal(base, t) for t in models):
        return base
    zero, *ends = _wide([base, *models])
    tasks = torch.stack([trim(t - zero, h) for t, h in zip(ends, thresholds, strict=True)])
    mask = calculate_majority_sign_mask(tasks, method="total")
    by = reshape_weight_task_tensors(tasks, torch.tensor(list(weights), dtype=zero.dtype))
    merged: Tensor = disjoint_merge(tasks * by, mask)
    return zero + scale * merged


def trim(task: Tensor, threshold: float) -> Tensor:
    """`task` with numbers below `threshold` in magnitude set to 0."""
    return torch.where(task.abs() >= threshold, task, 0.0)


def threshold(pieces: Callable[[], Iterable[Tensor]], density: float) -> float:
    """Magnitude of the ceil(density * d)-th largest of d numbers that come in `pieces`, exact in float32, without
    holding them: two passes over the data, since magnitudes order as their bit patterns do.

    Ties at the threshold all stay. density 1: 0.0 (all stay).
    """
    if density >= 1.0:
        return 0.0
    upper, size = torch.zeros(_HALF, dtype=torch.int64), 0
    for bits in _bits(pieces()):
        upper += torch.bincount(bits >> 16, minlength=_HALF)
        size += bits.numel()
    wanted = max(1, -int(-density * size // 1))
    high, above = _bin(upper, wanted)
    lower = torch.zeros(_HALF, dtype=torch.int64)
    for bits in _bits(pieces()):
        lower += torch.bincount(bits[(bits >> 16) == high] & (_HALF - 1), minlength=_HALF)
    low, _ = _bin(lower, wanted - above)
    return float(torch.tensor((high << 16) | low, dtype=torch.int32).view(torch.float32))


def _bits(tasks: Iterable[Tensor], piece: int = 1 << 24) -> Iterator[Tensor]:
    """Magnitudes as integers of the same order, int64, `piece` at a time."""
    for task in tasks:
        for part in torch.split(task.detach().flatten(), piece):
            yield part.float().abs().view(torch.int32).to(torch.int64)


def _bin(counts: Tensor, wanted: int) -> tuple[int, int]:
    """(bin of the `wanted`-th largest, how many are in the bins above it)."""
    from_top = counts.flip(0).cumsum(0)
    at = int(torch.searchsorted(from_top, wanted))
    return len(counts) - 1 - at, int(from_top[at - 1]) if at else 0
