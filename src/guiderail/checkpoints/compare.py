"""What differs between two checkpoints, parameter by parameter.

Guarantees: every tensor of both is looked at; shapes, dtypes and values are told apart; an output head that one keeps
apart and the other ties to its embedding is compared with that embedding, not reported as missing. Memory holds one
tensor of each. Says nothing of what the model computes: see `stages.merge_verify` for logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guiderail.checkpoints.effective import EMBEDDING, HEAD, Effective


@dataclass(frozen=True)
class Gap:
    """|a - b| of one tensor: largest and mean, in float64. inf where one holds a number that is not finite and the
    other does not hold the same."""

    max: float
    mean: float


@dataclass(frozen=True)
class Difference:
    """Two checkpoints, a and b.

    missing: names only a has; extra: only b. shapes, dtypes: name -> (a's, b's). values: per tensor that is not equal.
    tied: how the output heads are kept, where the two differ in it ("" = alike). tensors, numbers: compared.
    """

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    dtypes: dict[str, tuple[str, str]]
    values: dict[str, Gap]
    tied: str
    tensors: int
    numbers: int
    total: float

    @property
    def equal(self) -> bool:
        """Bit for bit the same tensors, in the same dtypes."""
        return not (self.missing or self.extra or self.shapes or self.dtypes or self.values)

    @property
    def max(self) -> float:
        """Largest |a - b| over all numbers compared."""
        return max((g.max for g in self.values.values()), default=0.0)

    @property
    def mean(self) -> float:
        """Mean |a - b| over all numbers compared."""
        return self.total / self.numbers if self.numbers else 0.0

    def faults(self, tolerance: float = 0.0, any_dtype: bool = False) -> list[str]:
        """Why the two are not the same within `tolerance`, one line each; empty when they are."""
        found = [f"only in the first: {_some(self.missing)}"] if self.missing else []
        found += [f"only in the second: {_some(self.extra)}"] if self.extra else []
        found += [f"shape of {n}: {a} and {b}" for n, (a, b) in self.shapes.items()]
        if self.dtypes and not any_dtype:
            name, (a, b) = next(iter(self.dtypes.items()))
            found.append(f"dtype of {len(self.dtypes)} tensors, e.g. {name}: {a} and {b}")
        beyond = {n: g for n, g in self.values.items() if not g.max <= tolerance}
        if beyond:
            name = max(beyond, key=lambda n: beyond[n].max)
            found.append(
                f"values of {len(beyond)} tensors beyond {tolerance:g}; most in {name}: max {beyond[name].max:.3g}, "
                f"mean {beyond[name].mean:.3g}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "missing": list(self.missing),
            "extra": list(self.extra),
            "shapes": {n: [list(a), list(b)] for n, (a, b) in self.shapes.items()},
            "dtypes": {n: list(x) for n, x in self.dtypes.items()},
            "values": {n: {"max": g.max, "mean": g.mean} for n, g in self.values.items()},
            "tied": self.tied,
            "tensors": self.tensors,
            "numbers": self.numbers,
            "max": self.max,
            "mean": self.mean,
        }


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def gap(a: Tensor, b: Tensor, piece: int = 1 << 24) -> Gap | None:
    """|a - b| of two tensors of one shape, or None when they are equal (equal NaN count as equal).

    In float64, `piece` numbers at a time.
    """
    if a.dtype == b.dtype and torch.equal(a, b):
        return None
    worst, total, differ = 0.0, 0.0, False
    for one, two in zip(torch.split(a.flatten(), piece), torch.split(b.flatten(), piece), strict=True):
        x, y = one.double(), two.double()
        same = (x == y) | (x.isnan() & y.isnan())
        if bool(same.all()):
            continue
        differ = True
        apart = torch.where(same, 0.0, (x - y).abs()).nan_to_num(nan=float("inf"), posinf=float("inf"))
        worst, total = max(worst, float(apart.max())), total + float(apart.sum())
    return Gap(worst, total / a.numel()) if differ else None


def compare(a: Path, b: Path) -> Difference:
    """What differs between two checkpoints (Hugging Face folders, or adapter folders with their parents)."""
    one, two = Effective(a), Effective(b)
    of_a = {n: n for n in one.forms}
    of_b = {n: n for n in two.forms}
    tied = ""
    if (HEAD in of_a) != (HEAD in of_b):
        apart, where = (one, of_b) if HEAD in of_a else (two, of_a)
        other = two if apart is one else one
        if EMBEDDING in other.forms and other.tied:
            where[HEAD] = EMBEDDING
            tied = f"{apart.checkpoint} keeps the output head apart, {other.checkpoint} ties it to its embedding"
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    dtypes: dict[str, tuple[str, str]] = {}
    values: dict[str, Gap] = {}
    numbers, total = 0, 0.0
    both = sorted(of_a.keys() & of_b.keys())
    for name in both:
        form, other_form = one.forms[of_a[name]], two.forms[of_b[name]]
        if form.shape != other_form.shape:
            shapes[name] = form.shape, other_form.shape
            continue
        first, second = one.tensor(of_a[name]), two.tensor(of_b[name])
        if first.dtype != second.dtype:
            kinds = [str(t.dtype).removeprefix("torch.") for t in (first, second)]
            dtypes[name] = kinds[0], kinds[1]
        numbers += first.numel()
        found = gap(first, second)
        if found is not None:
            values[name] = found
            total += found.mean * first.numel()
    missing, extra = (tuple(sorted(x - y)) for x, y in ((of_a.keys(), of_b.keys()), (of_b.keys(), of_a.keys())))
    return Difference(missing, extra, shapes, dtypes, values, tied, len(both), numbers, total)
