"""Whether a merged checkpoint may take the place of those it was made of.

Guarantees: merged and parent are compared on the instances that both were measured on, paired, with the bootstrap
interval of `stats`; worse means that the whole interval of (merged - parent) lies below zero. An interval that
includes zero lets a merge pass: with few instances that says little, so n and width are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from guiderail.bench import records
from guiderail.bench.stats import Interval, paired_difference, success


@dataclass(frozen=True)
class Verdict:
    """Success of all, and the paired differences merged - parent, by the parent's name."""

    success: dict[str, Interval]
    differences: dict[str, Interval]

    @property
    def worse_than(self) -> list[str]:
        """Parents that beat the merged checkpoint beyond the interval."""
        return [n for n, d in self.differences.items() if d.hi is not None and d.hi < 0]

    @property
    def unmeasured(self) -> list[str]:
        """Parents without one instance measured in both."""
        return [n for n, d in self.differences.items() if d.mean is None]

    def lines(self) -> list[str]:
        """One line per checkpoint."""
        told = []
        for name, found in self.success.items():
            text = f"{name}: success {_percent(found)}"
            if name in self.differences:
                d = self.differences[name]
                text += f"; merged - this: {_points(d)}" + (" WORSE" if name in self.worse_than else "")
            told.append(text)
        return told

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "success": {n: i.to_json() for n, i in self.success.items()},
            "differences": {n: i.to_json() for n, i in self.differences.items()},
            "worse_than": self.worse_than,
        }


def _percent(i: Interval) -> str:
    if i.mean is None or i.lo is None or i.hi is None:
        return i.reason
    return f"{100 * i.mean:.1f} % [{100 * i.lo:.1f}, {100 * i.hi:.1f}] of {i.n}"


def _points(i: Interval) -> str:
    if i.mean is None or i.lo is None or i.hi is None:
        return i.reason
    return f"{100 * i.mean:+.1f} points [{100 * i.lo:+.1f}, {100 * i.hi:+.1f}]"


def judge(rows: Mapping[str, pd.DataFrame], merged: str, *, draws: int, confidence: float) -> Verdict:
    """Compare `merged` with every other checkpoint of `rows` (tables of `records`, by name)."""
    everything = pd.concat(list(rows.values()), ignore_index=True)
    template = dict(zip(everything["task"].astype(str), everything["template"].astype(str), strict=True))
    found = {n: records.outcomes(r) for n, r in rows.items()}
    return Verdict(
        {n: success([o], template, draws=draws, confidence=confidence) for n, o in found.items()},
        {
            n: paired_difference([o], [found[merged]], template, draws=draws, confidence=confidence)
            for n, o in found.items()
            if n != merged
        },
    )
