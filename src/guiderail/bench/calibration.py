"""How good a judge of steps is: accuracy, AUROC, expected calibration error, reliability, by template.

Guarantees: pure functions of (p, label): p in [0, 1] is the judge's probability of +1, label whether the step was one.
Ties count half in AUROC; with one class only there is no AUROC, and it is None with its reason, never 0.5. Intervals
draw whole episodes (the steps of one are alike) with a generator seeded by the label of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guiderail.bench.stats import Interval, generator, nothing

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Judged:
    """One step that was judged: p of +1, what the state judge says, and where it comes from. invalid: share of its
    votes that could not be read (p is then over the others; nan when there is none)."""

    p: float
    good: bool
    template: str
    source: str
    kind: str
    episode: str
    invalid: float = 0.0


def accuracy(p: Floats, good: Bools) -> float:
    """Share of steps where p >= 0.5 says what the label says; nan without steps."""
    return float(((p >= 0.5) == good).mean()) if len(p) else float("nan")


def auroc(p: Floats, good: Bools) -> float:
    """Area under the ROC curve: P(p of a good step > p of a bad one) + half of P(equal); nan with one class only.

    Mann-Whitney U over midranks, (sum of ranks of the good - n1 (n1 + 1) / 2) / (n1 n0) (Hanley and McNeil 1982).
    """
    n1, n0 = int(good.sum()), int((~good).sum())
    if n1 == 0 or n0 == 0:
        return float("nan")
    _, index, count = np.unique(p, return_inverse=True, return_counts=True)
    midrank = np.cumsum(count) - (count - 1) / 2.0
    return float((midrank[index][good].sum() - n1 * (n1 + 1) / 2.0) / (n1 * n0))


def reliability(p: Floats, good: Bools, bins: int = 10) -> list[dict[str, Any]]:
    """Bins of equal width over p (the last one closed): {lo, hi, n, p (its mean), good (share)}; empty ones have null
    means."""
    index = np.minimum((p * bins).astype(np.int64), bins - 1)
    found = []
    for b in range(bins):
        here = index == b
        n = int(here.sum())
        means = (float(p[here].mean()), float(good[here].mean())) if n else (None, None)
        found.append({"lo": b / bins, "hi": (b + 1) / bins, "n": n, "p": means[0], "good": means[1]})
    return found


def ece(p: Floats, good: Bools, bins: int = 10) -> float:
    """Expected calibration error of p as the probability of +1 (Naeini et al. 2015, the binary form): the mean over
    steps of |mean p - share of good| of the step's bin; nan without steps."""
    if not len(p):
        return float("nan")
    return float(sum(b["n"] * abs(b["p"] - b["good"]) for b in reliability(p, good, bins) if b["n"]) / len(p))


def brier(p: Floats, good: Bools) -> float:
    """Mean squared error of p; nan without steps."""
    return float(((p - good) ** 2).mean()) if len(p) else float("nan")


def auroc_interval(
    p: Floats, good: Bools, episodes: Sequence[str], *, label: Sequence[object], draws: int, confidence: float
) -> Interval:
    """AUROC with a percentile interval over drawn episodes; draws that lost a class are left out."""
    return _drawn(lambda rows: auroc(p[rows], good[rows]), good, episodes, ("auroc", *label), draws, confidence, 0.0)


def auroc_difference(
    p: Floats,
    other: Floats,
    good: Bools,
    episodes: Sequence[str],
    *,
    label: Sequence[object],
    draws: int,
    confidence: float,
) -> Interval:
    """AUROC of `p` less that of `other` on the same steps, paired: both are taken on each drawn set of episodes."""

    def of(rows: Rows) -> float:
        return auroc(p[rows], good[rows]) - auroc(other[rows], good[rows])

    return _drawn(of, good, episodes, ("auroc-difference", *label), draws, confidence, -1.0)


def _drawn(
    statistic: Callable[[Rows], float],
    good: Bools,
    episodes: Sequence[str],
    label: Sequence[object],
    draws: int,
    confidence: float,
    least: float,
) -> Interval:
    """`statistic` of all steps, with a percentile interval over drawn episodes ([least, 1] where no draw has one)."""
    point = statistic(np.arange(len(good)))
    if np.isnan(point):
        return nothing("good or bad steps only" if len(good) else "no judged step")
    names = np.unique(np.asarray(episodes), return_inverse=True)[1]
    order = np.argsort(names, kind="stable")
    starts = np.searchsorted(names[order], np.arange(names.max() + 2))
    rng, found = generator(*label), []
    for _ in range(draws):
        drawn = rng.integers(0, names.max() + 1, names.max() + 1)
        rows = np.concatenate([order[starts[e] : starts[e + 1]] for e in drawn])
        value = statistic(rows)
        found += [] if np.isnan(value) else [value]
    if not found:
        return Interval(point, least, 1.0, len(good))
    tail = (1 - confidence) / 2
    lo, hi = (float(x) for x in np.quantile(found, [tail, 1 - tail]))
    return Interval(point, min(lo, point), max(hi, point), len(good))


def figures(rows: Sequence[Judged], *, bins: int, draws: int, confidence: float, label: str) -> dict[str, Any]:
    """All figures of one set of steps. Steps without a valid vote are counted in `unread` and enter no figure."""
    kept = [r for r in rows if not np.isnan(r.p)]
    p, good = np.array([r.p for r in kept]), np.array([r.good for r in kept], dtype=np.bool_)
    area = auroc_interval(p, good, [r.episode for r in kept], label=(label,), draws=draws, confidence=confidence)
    numbers = {"accuracy": accuracy(p, good), "ece": ece(p, good, bins), "brier": brier(p, good)}
    return {
        "n": len(kept),
        "good": int(good.sum()),
        "unread": len(rows) - len(kept),
        "invalid_votes": float(np.mean([r.invalid for r in rows])) if rows else 0.0,
        "auroc": area.to_json(),
        "majority": float(max(good.mean(), 1 - good.mean())) if len(kept) else None,
        **{k: None if np.isnan(v) else v for k, v in numbers.items()},
    }


def calibration(rows: Sequence[Judged], *, bins: int, draws: int, confidence: float) -> dict[str, Any]:
    """Figures over all rows, by template, source and kind of step, and the reliability curve of all rows."""

    def by(column: str) -> Mapping[str, Any]:
        names = sorted({str(getattr(r, column)) for r in rows})
        return {
            name: figures(
                [r for r in rows if getattr(r, column) == name], bins=bins, draws=draws, confidence=confidence,
                label=f"{column}/{name}",
            )
            for name in names
        }  # fmt: skip

    kept = [r for r in rows if not np.isnan(r.p)]
    p, good = np.array([r.p for r in kept]), np.array([r.good for r in kept], dtype=np.bool_)
    return {
        **figures(rows, bins=bins, draws=draws, confidence=confidence, label="all"),
        "confidence": confidence,
        "bins": reliability(p, good, bins),
        "templates": by("template"),
        "sources": by("source"),
        "kinds": by("kind"),
    }
