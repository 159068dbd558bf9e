"""The least that a judge of steps has to beat: a table of how often steps with the same told facts were good.

Guarantees: pure; the table is fitted on the training steps alone and looked up on the others, so the figures beside a
judge's stand on the same footing as the judge's own. It sees no pixel and no word of the task: what a judge adds to it
is what it took from these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guiderail.bench.calibration import Judged, auroc_difference, calibration

KEPT = ("n", "good", "auroc", "accuracy", "ece", "brier")


def looked_up(facts: Sequence[Hashable], good: Sequence[bool], asked: Sequence[Hashable]) -> NDArray[np.float64]:
    """P(good) of the steps `asked` from the steps with known answers, float64 [len(asked)]::

        p(f) = (good steps with facts f + m) / (steps with facts f + 1)      m = share of good steps

    One step of the share m is added to each entry, so facts that were never seen get m and seldom seen ones are drawn
    to it. Raises ValueError without a known answer.
    """
    if not good or len(facts) != len(good):
        raise ValueError(f"{len(facts)} steps with facts and {len(good)} answers; need as many, and one at least")
    share = sum(good) / len(good)
    all_of, good_of = Counter(facts), Counter(f for f, g in zip(facts, good, strict=True) if g)
    return np.array([(good_of[f] + share) / (all_of[f] + 1) for f in asked], dtype=np.float64)


def beside(
    judged: Sequence[Judged], p: NDArray[np.float64], *, bins: int, draws: int, confidence: float
) -> dict[str, Any]:
    """`facts`: figures of the table on the steps that a judge judged (p: `looked_up` for each), all and by template;
    `over_facts`: AUROC of the judge less that of the table, paired."""
    table = [replace(j, p=float(x), invalid=0.0) for j, x in zip(judged, p, strict=True)]
    found = calibration(table, bins=bins, draws=draws, confidence=confidence)
    read = [i for i, j in enumerate(judged) if not np.isnan(j.p)]
    gain = auroc_difference(
        np.array([judged[i].p for i in read]),
        p[read],
        np.array([judged[i].good for i in read], dtype=np.bool_),
        [judged[i].episode for i in read],
        label=("facts",),
        draws=draws,
        confidence=confidence,
    )
    templates = {name: {k: part[k] for k in KEPT} for name, part in found["templates"].items()}
    return {"facts": {k: found[k] for k in KEPT} | {"templates": templates}, "over_facts": gain.to_json()}
