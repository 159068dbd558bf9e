"""Numbers of a recorded benchmark from its lines (`bench.sop`), each with its interval.

Guarantees: trajectories that ended in an error count in no mean and are listed by kind; what was measured on nothing is
None with a reason. Step metrics draw whole trajectories, since the steps of one are no independent sample.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from guiderail.bench.stats import Interval, bootstrap_mean, nothing

Rows = Sequence[Mapping[str, Any]]


def progress(rows: Rows, *, draws: int = 2000, confidence: float = 0.95) -> dict[str, Interval]:
    """SOP numbers over the n trajectories without error, s leading matches of n_i steps::

        tsr = mean[s_i = n_i]      pg = mean(s_i / n_i)      score = (pg + tsr) / 2

    Source: UI-S1 (arXiv 2509.11543) appendix A.3.
    """
    done = [r for r in rows if r["error"] is None]
    tsr = np.array([float(r["s"] == r["n"]) for r in done])
    pg = np.array([r["s"] / r["n"] for r in done])
    values = {"tsr": tsr, "pg": pg, "score": (tsr + pg) / 2}
    return {
        k: bootstrap_mean(v, ["all"] * len(v), draws=draws, confidence=confidence)
        if len(v)
        else nothing("no measured trajectory")
        for k, v in values.items()
    }


def steps(rows: Rows, *, draws: int = 500, confidence: float = 0.95) -> dict[str, Any]:
    """Over all steps that were asked: type match, grounding (of clicks and long presses answered as such), success
    (exact), and the same per kind of expected action."""
    asked = [(r["episode_id"], s) for r in rows if r["error"] is None for s in r["steps"]]

    def over(chosen: list[tuple[str, Mapping[str, Any]]], key: str) -> Interval:
        found = [(e, float(s[key])) for e, s in chosen if s[key] is not None]
        if not found:
            return nothing("no such step")
        names, values = zip(*found, strict=True)
        options: dict[str, Any] = {"draws": draws, "confidence": confidence, "over": "templates"}
        return bootstrap_mean(np.array(values), names, **options)

    kinds: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for e, s in asked:
        kinds.setdefault(json.loads(s["expected"])["kind"], []).append((e, s))
    names = {"type": "type", "grounding": "grounding", "success": "exact"}
    return {
        "asked": len(asked),
        **{k: over(asked, v) for k, v in names.items()},
        "actions": {
            kind: {"n": len(part), **{k: over(part, v) for k, v in names.items()}}
            for kind, part in sorted(kinds.items())
        },
    }


def summary(rows: Rows, *, draws: int = 2000, confidence: float = 0.95) -> dict[str, Any]:
    """Everything as plain values: protocol, progress (of "sop"), steps, coverage, errors by kind."""
    protocols = {r["protocol"] for r in rows}
    if len(protocols) != 1:
        raise ValueError(f"lines of {len(protocols)} protocols: {sorted(protocols)}; summarise each by itself")
    (protocol,) = protocols
    errors = Counter(r["error"]["kind"] for r in rows if r["error"] is not None)
    found = progress(rows, draws=draws, confidence=confidence) if protocol == "sop" else {}
    options: dict[str, Any] = {"draws": min(draws, 500), "confidence": confidence}
    out = {"protocol": protocol, **found, "steps": steps(rows, **options), "errors": dict(sorted(errors.items()))}
    return _json({**out, "trajectories": len(rows), "coverage": 1 - sum(errors.values()) / len(rows)})  # type: ignore[no-any-return]


def _json(v: Any) -> Any:
    if isinstance(v, Interval):
        return v.to_json()
    return {k: _json(x) for k, x in v.items()} if isinstance(v, dict) else v
