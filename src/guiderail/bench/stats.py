"""Success rates and differences with intervals that mean something.

Guarantees: an interval is a pure function of the data and the confidence: the generator is seeded by hashing the values
themselves, whatever instances and templates are called and in whatever order they come, never by a name or a clock; so
equal data has equal intervals. Nothing measured gives no number but a reason; constant data never gives zero width.
Does not correct for multiple comparisons: with many templates some intervals miss by chance.

Three sources of chance are kept apart. *Instances*: which seeds of a template were drawn (templates held fixed, the
default). *Templates*: which templates exist at all (`over="templates"`, wider: it speaks about tasks nobody wrote yet).
*Seeds*: which training run one happened to get (used as soon as there is more than one run).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Over = Literal["instances", "templates"]


@dataclass(frozen=True)
class Interval:
    """A mean with its interval [lo, hi] from `n` measured values; all three are None, with a reason, when n is 0."""

    mean: float | None
    lo: float | None
    hi: float | None
    n: int
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """`{mean, lo, hi, n}`, plus `reason` when there is no number."""
        out: dict[str, Any] = {"mean": self.mean, "lo": self.lo, "hi": self.hi, "n": self.n}
        return {**out, "reason": self.reason} if self.reason else out

    def mirrored(self) -> Interval:
        """The interval of the same data with the sign turned."""
        mean, lo, hi = (None if x is None else 0.0 - x for x in (self.mean, self.hi, self.lo))
        return Interval(mean, lo, hi, self.n, self.reason)

    def excludes_zero(self) -> bool:
        """Whether the interval lies wholly on one side of zero."""
        return self.lo is not None and self.hi is not None and (self.lo > 0 or self.hi < 0)


def nothing(reason: str) -> Interval:
    """The interval of nothing measured."""
    return Interval(None, None, None, 0, reason)


def generator(*label: object) -> np.random.Generator:
    """A generator seeded by the SHA-256 of the label's parts."""
    digest = hashlib.sha256("\x1f".join(map(str, label)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of one proportion (Wilson 1927): holds its coverage at 0, at 1 and for small n.

    Raises ValueError when successes lie outside [0, n].
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: must lie in [0, {n}]")
    if n == 0:
        return nothing("no measured episode")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p, z2 = successes / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    lo = 0.0 if successes == 0 else max(0.0, centre - half)
    hi = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(p, lo, hi, n)


def _weights(rng: np.random.Generator, draws: int, members: int) -> Floats:
    """Rao-Wu bootstrap weights [draws, members]: members-1 drawn of members, rescaled to mean 1.

    Drawing one less makes the variance of the mean unbiased (Rao and Wu 1988). One member: nothing to draw.
    """
    if members < 2:
        return np.ones((draws, members))
    drawn = rng.integers(members, size=(draws, members - 1)) + members * np.arange(draws)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=draws * members).reshape(draws, members)
    return np.asarray(counts * (members / (members - 1)), dtype=np.float64)


def student_quantile(p: float, dof: float) -> float:
    """Quantile of Student's t, dof rounded down: exact for 1 and 2, else Hill's expansion (1970; < 1 % off)."""
    nu = max(1, int(dof))
    if nu == 1:
        return math.tan(math.pi * (p - 0.5))
    if nu == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(t / nu ** (i + 1) for i, t in enumerate(terms))


def _canonical(v: Floats, strata: Sequence[Hashable]) -> tuple[Floats, tuple[int, ...]]:
    """`v` [runs, instances] with its columns in an order that only the values decide, and the sizes of the strata in
    that order: instances sorted within their stratum, strata by size and content."""
    where: dict[Hashable, list[int]] = {}
    for k, stratum in enumerate(strata):
        where.setdefault(stratum, []).append(k)
    parts = [v[:, members] + 0.0 for members in where.values()]  # + 0.0: a negative zero is a zero
    parts = [part[:, np.lexsort(part[::-1])] for part in parts]
    parts.sort(key=lambda part: (part.shape[1], part.tobytes()))
    return np.concatenate(parts, axis=1), tuple(part.shape[1] for part in parts)


def bootstrap_mean(
    values: Floats,
    strata: Sequence[Hashable],
    *,
    over: Over = "instances",
    draws: int = 2000,
    confidence: float = 0.95,
    span: tuple[float, float] = (0.0, 1.0),
) -> Interval:
    """Mean over all measured entries of `values` [runs, instances] (NaN = not measured) and its bootstrap interval.

    `strata` names the template of each instance. over="instances" draws instances within each template;
    over="templates" draws whole templates (ultimate-cluster bootstrap). With two or more runs these are drawn as well,
    crossed with the instances (the pigeonhole bootstrap, Owen 2007: mildly conservative). The percentiles are stretched
    about the mean by t/z for the degrees of freedom that few templates or few runs leave (Satterthwaite 1946).
    `span` is the range of the values, for clipping.
    """
    v = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if v.shape[1] != len(strata):
        raise ValueError(f"values are [runs, instances] = {v.shape}, but there are {len(strata)} strata labels")
    keep = np.flatnonzero(~np.isnan(v).all(axis=0)).tolist()
    v, names = v[:, keep], [strata[k] for k in keep]
    v = v[~np.isnan(v).all(axis=1)]
    seen = ~np.isnan(v)
    n = int(seen.sum())
    if n == 0:
        return nothing("no measured episode")
    mean = float(np.where(seen, v, 0.0).sum() / n)
    if np.ptp(v[seen]) == 0:  # constant: the bootstrap would claim certainty; Wilson's bound on "0 of n" is honest
        half = wilson(0, v.shape[1], confidence).hi or 0.0
        return Interval(mean, max(span[0], mean - half), min(span[1], mean + half), n)
    ordered, sizes = _canonical(v, names)
    lo, hi = _percentiles(ordered.tobytes(), len(v), sizes, over, draws, confidence)
    return Interval(mean, max(span[0], min(lo, mean)), min(span[1], max(hi, mean)), n)


@lru_cache(maxsize=1024)
def _percentiles(
    data: bytes, runs: int, sizes: tuple[int, ...], over: Over, draws: int, confidence: float
) -> tuple[float, float]:
    """Interval of the mean of `_canonical` values. Remembered: base and SFT are the same under every recipe."""
    v = np.frombuffer(data, dtype=np.float64).reshape(runs, -1)
    seen = ~np.isnan(v)
    filled = np.where(seen, v, 0.0)
    mean = float(filled.sum() / seen.sum())
    rng = generator("bootstrap", over, runs, sizes, hashlib.sha256(data).hexdigest())
    if over == "instances":
        # templates with one instance are merged, for alone they would show no variance at all; they come first
        ones = sizes.count(1)
        strata = (ones, *sizes[ones:]) if ones else sizes
        member = np.concatenate([_weights(rng, draws, size) for size in strata], axis=1)
        dof = len(v[0]) - len(strata)
    else:
        strata = sizes
        member = np.repeat(_weights(rng, draws, len(strata)), strata, axis=1)
        dof = len(strata) - 1
    run = _weights(rng, draws, runs)
    top = (run * (member @ filled.T)).sum(axis=1)
    bottom = (run * (member @ seen.astype(np.float64).T)).sum(axis=1)
    means = top[bottom > 0] / bottom[bottom > 0]
    upper = 0.5 + confidence / 2
    lo, hi = (float(q) for q in np.quantile(means, [1 - upper, upper]))
    index = np.repeat(np.arange(len(strata)), strata)
    stretch = student_quantile(upper, _satterthwaite(v, index, float(means.var()), dof))
    stretch /= NormalDist().inv_cdf(upper)
    return mean - stretch * (mean - lo), mean + stretch * (hi - mean)


def _satterthwaite(v: Floats, index: NDArray[np.int64], variance: float, dof: int) -> float:
    """Degrees of freedom of a variance made of a true spread between runs (runs - 1) and the rest (`dof`).

    The spread between runs is what their means differ by beyond the noise of the instances each was measured on, so
    that runs which agree do not widen the interval.
    """
    runs = len(v)
    if runs < 2 or variance <= 0:
        return max(1, dof)
    noise = np.zeros(runs)
    for r in range(runs):
        seen = ~np.isnan(v[r])
        for stratum in np.unique(index[seen]):
            part = v[r, seen & (index == stratum)]
            noise[r] += len(part) * float(part.var(ddof=1)) / seen.sum() ** 2 if len(part) > 1 else 0.0
    spread = float(np.nanmean(v, axis=1).var(ddof=1)) - float(noise.mean())
    between = min(variance, max(0.0, spread) / runs)
    return float(variance**2 / (between**2 / (runs - 1) + (variance - between) ** 2 / max(1, dof)))


Outcomes = Mapping[str, float]


def _matrix(runs: Sequence[Outcomes]) -> tuple[list[str], Floats]:
    tasks = sorted({t for r in runs for t in r})
    cells = [[r.get(t, math.nan) for t in tasks] for r in runs]
    return tasks, np.array(cells, dtype=np.float64).reshape(len(runs), len(tasks))


def success(
    runs: Sequence[Outcomes], template: Mapping[str, str], *, over: Over = "instances", draws: int = 2000,
    confidence: float = 0.95,
) -> Interval:  # fmt: skip
    """Mean success of `runs` (one {task id: 0 or 1} of measured episodes per training seed)."""
    tasks, v = _matrix(runs)
    if not tasks:
        return nothing("no measured episode")
    return bootstrap_mean(v, [template[t] for t in tasks], over=over, draws=draws, confidence=confidence)


def paired_difference(
    before: Sequence[Outcomes], after: Sequence[Outcomes], template: Mapping[str, str], *, over: Over = "instances",
    draws: int = 2000, confidence: float = 0.95,
) -> Interval:  # fmt: skip
    """Mean of after - before over the instances measured in both, per training seed (same length, same order).

    Pairing removes the spread that both checkpoints share (an instance hard for one is hard for the other). The
    difference the other way round has exactly the mirrored interval: of the two, that with the larger mean is drawn.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} runs before, {len(after)} after: pair them by training seed")
    pairs = [{t: b[t] - a[t] for t in b if t in a} for a, b in zip(before, after, strict=True)]
    tasks, v = _matrix(pairs)
    if not tasks:
        return nothing("no instance measured in both")
    names = [template[t] for t in tasks]
    turned = np.where(np.isnan(v), np.nan, 0.0 - v)

    def drawn(values: Floats) -> Interval:
        return bootstrap_mean(values, names, over=over, draws=draws, confidence=confidence, span=(-1.0, 1.0))

    total = float(np.nansum(v))
    if total == 0:  # neither mean is the larger: the contents decide
        one, other = (_canonical(x, names)[0].tobytes() for x in (v, turned))
        if one == other:
            found = drawn(v)
            half = ((found.hi or 0.0) - (found.lo or 0.0)) / 2
            return Interval(found.mean, -half, half, found.n)
        total = 1.0 if one > other else -1.0
    return drawn(v) if total > 0 else drawn(turned).mirrored()
