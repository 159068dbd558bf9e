"""The recipes side by side: what each reached, what it cost, and what a point of gain cost.

Guarantees: success and gain are those of the first benchmark's fresh instances (its first split where there are none),
SOP those of benchmark sop; every figure has its interval, over seeds where there are several; costs are those of the
rl stage alone, means over seeds, all attempts included. A cost per point is told only where a gain was measured; its
bounds are the cost over the bounds of the gain, so one that may be zero has no upper bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from guiderail.bench import records
from guiderail.bench.stats import Outcomes, success
from guiderail.report.data import ReportData
from guiderail.report.summary import Bench, Tree
from guiderail.report.tables import interval, percent

COSTS = {"cpu_seconds": "CPU s", "env_steps": "env steps", "replay_steps": "of them replayed", "tokens": "tokens"}
PER_POINT = ("cpu_seconds", "env_steps", "tokens")
SCORES: dict[str, Callable[[pd.DataFrame], pd.Series[Any]]] = {
    "tsr": lambda f: f["success"].astype(float),
    "pg": lambda f: f["reward"].astype(float),
    "score": lambda f: (f["success"].astype(float) + f["reward"].astype(float)) / 2,
}


def recorded_scores(bench: Bench) -> Tree:
    """`{recipe: {checkpoint: {split: {tsr, pg, score}}}}` of a recorded benchmark, each {mean, lo, hi, n}: share of
    trajectories done whole, mean progress, and their mean (UI-S1, appendix A.3)."""

    def one(recipe: str, checkpoint: str, split: str, name: str) -> Tree:
        runs: list[Outcomes] = []
        for seed in bench.seeds(checkpoint):
            f = records.measured(bench.rows(recipe, checkpoint, split, seed))
            runs.append({str(t): float(v) for t, v in zip(f["task"], SCORES[name](f), strict=True)})
        return success(runs, bench.template, draws=bench.draws, confidence=bench.confidence).to_json()

    return {
        r: {c: {s: {n: one(r, c, s, n) for n in SCORES} for s in bench.splits} for c in bench.checkpoints}
        for r in bench.data.recipes
    }


def at_best(bench: Bench) -> str:
    """A sentence on what the format of the answers cannot say of a recorded benchmark; "" where it can say all."""
    file = next(f for (*_, b), f in bench.data.evaluations.items() if b == bench.benchmark) / "recorded.json"
    found = json.loads(file.read_text()).get("at_best") if file.is_file() else None
    if not found or not found["lost"]:
        return ""
    gaps = ", ".join(f"{n} {kind}" for kind, n in found["lost"].items())
    tsr, pg, right = (percent(found[k]) for k in ("tsr", "pg", "right"))
    return (
        f" Codec {found['codec']} has no form for {gaps} of {found['steps']} expected actions: a policy that is right "
        f"wherever it can be gets TSR {tsr}, PG {pg}, {right} of the steps."
    )


def per_point(cost: float | None, gain: Tree) -> Tree:
    """{mean, lo, hi} of cost per percentage point of `gain`; None where it is unbounded or there is no gain."""
    if cost is None or gain.get("mean") is None or gain["mean"] <= 0:
        return {"mean": None, "lo": None, "hi": None}
    points = {k: 100 * gain[k] for k in ("mean", "lo", "hi")}
    return {
        "mean": cost / points["mean"],
        "lo": cost / points["hi"],
        "hi": cost / points["lo"] if points["lo"] > 0 else None,
    }


def mean_cost(data: ReportData, recipe: str, key: str) -> float | None:
    """Mean over seeds of what the rl stage of a recipe used; None when no seed recorded it."""
    found = [data.used.get(f"rl/{recipe}/seed{s}", {}).get(key) for s in data.seeds]
    known = [v for v in found if v is not None]
    return sum(known) / len(known) if known else None


def comparison(data: ReportData, trees: dict[str, Tree]) -> Tree:
    """`{recipe: {success, gain, sop, cost, per_point}}`; sop is None without that benchmark."""
    tree = trees[data.benchmarks[0]]
    out: Tree = {}
    for recipe in data.recipes:
        found = tree["success"][recipe].get("rl")
        if found is None:
            continue
        split = "fresh" if "fresh" in found else next(iter(found))
        gain = tree.get("gain", {}).get(recipe, {}).get(split, {"mean": None})
        sop = trees.get("sop", {}).get("scores", {}).get(recipe, {}).get("rl", {})
        cost = {k: mean_cost(data, recipe, k) for k in COSTS}
        out[recipe] = {
            "split": split,
            "success": found[split],
            "gain": gain,
            "sop": next((sop[s]["score"] for s in ("fresh", *sop) if s in sop), None),
            "cost": cost,
            "per_point": {k: per_point(cost[k], gain) for k in PER_POINT},
        }
    return out


def table(compared: Tree) -> pd.DataFrame:
    """The comparison as CSV columns."""
    rows = []
    for recipe, c in compared.items():
        row: dict[str, Any] = {"recipe": recipe, "split": c["split"]}
        for name in ("success", "gain", "sop"):
            row |= {f"{name}_{k}": (c[name] or {}).get(k) for k in ("mean", "lo", "hi")}
        row |= c["cost"]
        row |= {f"{k}_per_point_{x}": v for k, t in c["per_point"].items() for x, v in t.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def reading(compared: Tree) -> pd.DataFrame:
    """The comparison as texts."""
    rows = []
    for recipe, c in compared.items():
        row = {"recipe": recipe, f"success ({c['split']})": interval(c["success"])}
        row["gain over SFT"] = interval(c["gain"], signed=True)
        if any(x["sop"] for x in compared.values()):
            row["SOP score"] = interval(c["sop"]) if c["sop"] else "n/a"
        row |= {COSTS[k]: "" if v is None else f"{v:,.0f}" for k, v in c["cost"].items()}
        row |= {f"{COSTS[k]} per point": _range(t) for k, t in c["per_point"].items()}
        rows.append(row)
    return pd.DataFrame(rows)


def _range(tree: Tree) -> str:
    if tree["mean"] is None:
        return "no gain"
    high = "no bound" if tree["hi"] is None or math.isinf(tree["hi"]) else f"{tree['hi']:,.0f}"
    return f"{tree['mean']:,.0f} [{tree['lo']:,.0f}, {high}]"


def recorded_table(tree: Tree) -> pd.DataFrame:
    """TSR, PG and Score of a recorded benchmark per recipe, checkpoint and split, as texts; all rows."""
    return pd.DataFrame(
        [
            {"recipe": r, "checkpoint": c, "split": s, "TSR": interval(x["tsr"]), "PG": interval(x["pg"]),
             "Score": interval(x["score"]), "n": str(x["tsr"]["n"])}
            for r, by_c in tree["scores"].items() for c, by_s in by_c.items() for s, x in by_s.items()
        ]
    )  # fmt: skip
