"""metrics.json of one evaluation: every checkpoint on every split, and the paired differences between them.

Guarantees: each mean has its interval and n; coverage says how much of the plan was measured. This is one training
seed; the report joins several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from guiderail.bench import records
from guiderail.bench.evaluate import Result, costs
from guiderail.bench.stats import paired_difference, success
from guiderail.params import Evaluate

PAIRS = (("base", "sft"), ("sft", "rl"), ("base", "rl"))


def split_metrics(rows: pd.DataFrame, template: Mapping[str, str], p: Evaluate) -> dict[str, Any]:
    """Success, coverage, exclusions by cause, steps and parse failures of one checkpoint on one split, by group too."""

    def interval(part: pd.DataFrame) -> dict[str, Any]:
        return success([records.outcomes(part)], template, draws=p.bootstrap, confidence=p.confidence).to_json()

    done = records.measured(rows)
    return {
        "success": interval(rows),
        "planned": len(rows),
        "measured": len(done),
        "coverage": len(done) / len(rows) if len(rows) else None,
        "excluded": records.excluded(rows),
        "steps_mean": float(done["steps"].mean()) if len(done) else None,
        "parse_failures": int(done["parse_failures"].sum()),
        "domains": {str(k): interval(v) for k, v in rows.groupby("domain")},
        "templates": {str(k): interval(v) for k, v in rows.groupby("template")},
    }


def metrics(results: Mapping[str, Result], p: Evaluate) -> dict[str, Any]:
    """Checkpoints and gains; see the module docstring."""
    everything = pd.concat([r.rows for r in results.values()], ignore_index=True)
    template = dict(zip(everything["task"].astype(str), everything["template"].astype(str), strict=True))
    splits = list(dict.fromkeys(everything["split"].astype(str)))
    checkpoints = {
        name: {
            "splits": {s: split_metrics(r.rows[r.rows["split"] == s], template, p) for s in splits},
            "resampled": r.resampled,
            **costs([r]),
        }
        for name, r in results.items()
    }
    gains: dict[str, Any] = {}
    for before, after in PAIRS:
        if before not in results or after not in results:
            continue
        gains[f"{before}->{after}"] = {}
        for split in splits:
            old, new = (records.outcomes(r.rows[r.rows["split"] == split]) for r in (results[before], results[after]))
            found = paired_difference([old], [new], template, draws=p.bootstrap, confidence=p.confidence)
            gains[f"{before}->{after}"][split] = found.to_json()
    return {"checkpoints": checkpoints, "gains": gains, "confidence": p.confidence, "bootstrap": p.bootstrap}
