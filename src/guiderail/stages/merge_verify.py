"""merge verify: are two checkpoints the same policy, parameter by parameter and in what they compute?

Guarantees: every tensor is compared (streaming, one of each in memory); then both are loaded as the chain loads them
and their logits compared at every position of rows written by the prompt builder from recorded frames and answers; the
verdict names every reason. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from guiderail.checkpoints.compare import Difference, compare
from guiderail.checkpoints.verify import VerifyError, probe_logits
from guiderail.models.loading import load_policy
from guiderail.params import Params
from guiderail.train.demos import load_demos


@dataclass(frozen=True)
class LogitGap:
    """|logits a - logits b| over all positions of the probe rows; how often both have the same likeliest token; mean
    KL(a || b) of the next-token distributions in nats."""

    max: float
    mean: float
    same_argmax: float
    kl: float
    rows: int
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class Verdict:
    """What was found and why the two differ (empty: they do not)."""

    parameters: Difference
    logits: LogitGap | None
    faults: tuple[str, ...]

    @property
    def text(self) -> str:
        """The verdict in one line."""
        if self.faults:
            return "DIFFERENT: " + "; ".join(self.faults)
        if self.parameters.equal:
            return "EQUAL, bit for bit"
        return f"EQUAL within tolerance (parameters {self.parameters.max:.3g}, mean {self.parameters.mean:.3g})"

    def lines(self) -> Iterable[str]:
        """What was compared, and the verdict last."""
        p = self.parameters
        yield (
            f"parameters: {p.tensors} tensors, {p.numbers} numbers compared; {len(p.values)} tensors differ, "
            f"|difference| max {p.max:.3g}, mean {p.mean:.3g}"
        )
        if p.tied:
            yield f"tied weights: {p.tied}"
        for name, found in sorted(p.values.items(), key=lambda x: -x[1].max)[:5]:
            yield f"  {name}: max {found.max:.3g}, mean {found.mean:.3g}"
        if self.logits is None:
            yield "logits: not compared"
        else:
            g = self.logits
            yield (
                f"logits: {g.tokens} positions of {g.rows} rows; |difference| max {g.max:.3g}, mean {g.mean:.3g}; same "
                f"likeliest token {100 * g.same_argmax:.2f} %; KL {g.kl:.2g} nats"
            )
        yield self.text


@torch.no_grad()
def logit_gap(a: Path, b: Path, params: Params, demos: Path, episodes: int) -> LogitGap:
    """Compare logits on the first `episodes` demonstrations of `demos`. Raises VerifyError without any."""
    one, two = load_policy(a, params.model), load_policy(b, params.model)
    probe = load_demos(demos, one, params.prompt, limit=episodes)
    if not probe.rows:
        raise VerifyError(f"{demos}: no demonstrations to compare logits on; run the demos stage")
    worst = total = kl = 0.0
    agree = tokens = numbers = 0
    for row in probe.rows:
        x, y = probe_logits(one, row, probe.frames), probe_logits(two, row, probe.frames)
        apart = (x - y).abs()
        worst, total = max(worst, float(apart.max())), total + float(apart.double().sum())
        agree += int((x.argmax(-1) == y.argmax(-1)).sum())
        p, q = x.log_softmax(-1), y.log_softmax(-1)
        kl += float((p.exp() * (p - q)).sum())
        tokens, numbers = tokens + len(x), numbers + x.numel()
    return LogitGap(worst, total / numbers, agree / tokens, kl / tokens, len(probe.rows), tokens)


def verify(
    a: Path,
    b: Path,
    params: Params,
    *,
    tolerance: float,
    logits: float | None,
    any_dtype: bool,
    demos: Path,
    episodes: int,
) -> Verdict:
    """Compare two checkpoints. tolerance: on parameters; logits: on logits, None = do not compare them. Raises
    ManifestError, CheckpointError, VerifyError."""
    found = compare(a, b)
    faults = found.faults(tolerance, any_dtype)
    gap = None
    loadable = not (found.missing or found.extra or found.shapes)
    if logits is not None and loadable:
        gap = logit_gap(a, b, params, demos, episodes)
        if not gap.max <= logits:
            faults.append(f"logits by {gap.max:.3g}, more than {logits:g}")
    return Verdict(found, gap, tuple(faults))
