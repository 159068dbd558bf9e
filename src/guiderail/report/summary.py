"""The figures of the report as one JSON tree (`summary.json`), for machines; tables and pages show the same numbers.

Layout (nested, so that `jq '.success.grpo.rl.fresh.mean' summary.json` works):
- `success.<recipe>.<checkpoint>.<split>` = {mean, lo, hi, n}; `n` counts measured results over all seeds
- `gain.<recipe>.<split>` = {mean, lo, hi, n}: RL minus SFT on the same instances; `gain_sft`: SFT minus
  base; `gain_total`: RL minus base
- `success_over_templates`, `gain_over_templates`: the same means with intervals that also draw the templates
- `coverage.<recipe>.<checkpoint>.<split>` = {planned, measured, share}
- `excluded.<recipe>.<checkpoint>.<split>` = {"kind/cause": episodes}
- `episodes.<recipe>.<checkpoint>.<split>` = {steps_mean, parse_failures, causes}
- `benchmarks.<recorded>.scores.<recipe>.<checkpoint>.<split>` = {tsr, pg, score} of a recorded benchmark
- `comparison.<recipe>` = {success, gain, sop, cost, per_point}: see `compare`
- `versus.<recipe>.<other>` = {mean, lo, hi, n}: the first minus the second on the same instances; `verdict`: which
  recipe won, in a sentence (see `verdict`)
- `stages.<output>` and `totals`: seconds, peak memory in bytes, env steps, tokens, as each stage recorded them
- `retrieval.<recipe>.<checkpoint>.<split>` = {without, with, gain} where evaluate.retrieval ran (see `retrieval`)
- `prm.<recipe>.<seed>`: calibration of the process reward model, where a recipe has one (see `judges`)
- with several benchmarks the first one of the sweep fills the keys above, `benchmarks.<name>` has all of them

Guarantees: no number without its n; what could not be measured is null with a reason. The base does not depend on the
training seed and enters once, whatever the number of seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from guiderail.bench import records
from guiderail.bench.stats import Interval, Outcomes, Over, paired_difference, success
from guiderail.report.data import ReportData
from guiderail.report.style import SPLITS

SAME = ["train_seed", "split", "task", "episode", "kind", "cause", "steps", "actions"]
"""Columns that tell episodes of one checkpoint apart."""
GAINS = {"gain": ("sft", "rl"), "gain_sft": ("base", "sft"), "gain_total": ("base", "rl")}
Tree = dict[str, Any]


class Bench:
    """The episodes of one benchmark and the settings its intervals are made with."""

    def __init__(self, data: ReportData, benchmark: str) -> None:
        self.data, self.benchmark = data, benchmark
        self.frame = data.episodes[data.episodes["benchmark"] == benchmark]
        cell = ["recipe", "checkpoint", "split", "train_seed"]
        self._cells = {tuple(map(str, k)): f for k, f in self.frame.groupby(cell, sort=False, observed=True)}
        self._outcomes: dict[tuple[str, ...], Outcomes] = {}
        first = data.metrics[data.recipes[0], data.seeds[0], benchmark]
        self.confidence, self.draws = float(first.get("confidence", 0.95)), int(first.get("bootstrap", 2000))
        pairs = self.frame[["task", "template"]].drop_duplicates().astype(str)
        self.template: dict[str, str] = dict(zip(pairs["task"], pairs["template"], strict=True))
        pairs = self.frame[["task", "domain"]].drop_duplicates().astype(str)
        self.domain: dict[str, str] = dict(zip(pairs["task"], pairs["domain"], strict=True))
        present = set(self.frame["checkpoint"].astype(str))
        self.checkpoints = [c for c in ("base", "sft", "rl") if c in present]
        self.splits = [s for s in SPLITS if s in set(self.frame["split"].astype(str))]

    def rows(self, recipe: str, checkpoint: str, split: str, seed: int | None = None) -> pd.DataFrame:
        """Episodes of one checkpoint on one split; of one training seed, or of all (the base only once)."""
        seeds = self.seeds(checkpoint) if seed is None else [seed]
        found = [self._cells.get((recipe, checkpoint, split, str(s)), self.frame[:0]) for s in seeds]
        return found[0] if len(found) == 1 else pd.concat(found)

    def seeds(self, checkpoint: str) -> list[int]:
        """Training seeds that a checkpoint was made with: one for the base, which does not depend on it."""
        return self.data.seeds[:1] if checkpoint.removesuffix("_demo") == "base" else self.data.seeds

    def shared(self, checkpoint: str) -> bool:
        """Whether a checkpoint that no recipe trains (base, SFT) has the same episodes under every recipe."""
        if checkpoint == "rl":
            return False
        own = self.frame[self.frame["checkpoint"] == checkpoint]
        parts = [own[own["recipe"] == r].sort_values(SAME, ignore_index=True)[SAME] for r in self.data.recipes]
        return all(parts[0].equals(p) for p in parts[1:])

    def runs(self, recipe: str, checkpoint: str, split: str, keep: Keep | None = None) -> list[Outcomes]:
        """Outcomes per training seed (one entry for the base); of the tasks that `keep` says."""
        found = []
        for seed in self.seeds(checkpoint):
            cell = (recipe, checkpoint, split, str(seed))
            if cell not in self._outcomes:
                self._outcomes[cell] = records.outcomes(self.rows(recipe, checkpoint, split, seed))
            own = self._outcomes[cell]
            found.append(own if keep is None else {t: v for t, v in own.items() if keep(t)})
        return found

    def of(self, column: str, name: str) -> Keep:
        """The tasks of one template or one domain, for `runs`."""
        groups = {"template": self.template, "domain": self.domain}[column]
        return lambda task: groups[task] == name

    def success(self, recipe: str, checkpoint: str, split: str, over: Over = "instances") -> Interval:
        """Mean success with its interval."""
        runs = self.runs(recipe, checkpoint, split)
        return success(runs, self.template, over=over, draws=self.draws, confidence=self.confidence)

    def gain(self, recipe: str, before: str, after: str, split: str, over: Over = "instances") -> Interval:
        """Paired difference after - before, matched by instance and training seed."""
        a, b = self.runs(recipe, before, split), self.runs(recipe, after, split)
        return self.difference(a * len(b) if len(a) == 1 else a, b, over)

    def difference(self, a: list[Outcomes], b: list[Outcomes], over: Over = "instances") -> Interval:
        """Paired difference b - a of outcomes per training seed."""
        return paired_difference(a, b, self.template, over=over, draws=self.draws, confidence=self.confidence)


Keep = Callable[[str], bool]


def distinct(data: ReportData) -> int:
    """Episodes of the sweep, those that several recipes share (base and SFT) and the base of several seeds once."""
    f = data.episodes
    checkpoint = f["checkpoint"].astype(str)
    key = f[["benchmark", *SAME]].assign(
        checkpoint=checkpoint,
        recipe=f["recipe"].where(checkpoint.str.startswith("rl"), ""),
        train_seed=f["train_seed"].where(~checkpoint.str.startswith("base"), -1),
    )
    return len(key.drop_duplicates())


def by_checkpoint(bench: Bench, value: Callable[[str, str, str], Any]) -> Tree:
    """`{recipe: {checkpoint: {split: value}}}`."""
    return {
        r: {c: {s: value(r, c, s) for s in bench.splits} for c in bench.checkpoints} for r in bench.data.recipes
    }  # fmt: skip


def _coverage(bench: Bench, recipe: str, checkpoint: str, split: str) -> Tree:
    rows = bench.rows(recipe, checkpoint, split)
    planned, done = len(rows), len(records.measured(rows))
    return {"planned": planned, "measured": done, "share": done / planned if planned else None}


def _episodes(rows: pd.DataFrame) -> Tree:
    done = records.measured(rows)
    causes = (done["kind"].astype(str) + "/" + done["cause"].astype(str)).value_counts().sort_index()
    return {
        "steps_mean": float(done["steps"].mean()) if len(done) else None,
        "parse_failures": int(done["parse_failures"].sum()),
        "causes": {str(k): int(v) for k, v in causes.items()},
    }


def benchmark_summary(bench: Bench) -> Tree:
    """All figures of one benchmark, as laid out in the module docstring."""
    tree: Tree = {"success": by_checkpoint(bench, lambda r, c, s: bench.success(r, c, s).to_json())}
    tree["success_over_templates"] = by_checkpoint(bench, lambda r, c, s: bench.success(r, c, s, "templates").to_json())
    for name, (before, after) in GAINS.items():
        if before in bench.checkpoints and after in bench.checkpoints:
            tree[name] = {
                r: {s: bench.gain(r, before, after, s).to_json() for s in bench.splits} for r in bench.data.recipes
            }  # fmt: skip
    if "gain" in tree:
        tree["gain_over_templates"] = {
            r: {s: bench.gain(r, "sft", "rl", s, "templates").to_json() for s in bench.splits}
            for r in bench.data.recipes
        }
    tree["coverage"] = by_checkpoint(bench, lambda r, c, s: _coverage(bench, r, c, s))
    tree["excluded"] = by_checkpoint(bench, lambda r, c, s: records.excluded(bench.rows(r, c, s)))
    tree["episodes"] = by_checkpoint(bench, lambda r, c, s: _episodes(bench.rows(r, c, s)))
    return tree


SUMS = ("seconds", "env_steps", "tokens", "remembered_steps", "remembered_tokens")


def totals(used: dict[str, dict[str, float | None]]) -> Tree:
    """What all stages used together: sums; of the peak memory, the largest. Remembered steps and tokens are in the
    sums of every output that rests on them."""

    def known(key: str) -> list[float]:
        return [v for v in (s.get(key) for s in used.values()) if v is not None]

    found: Tree = {key: sum(known(key)) for key in SUMS}
    return {**found, "peak_memory_bytes": max(known("peak_memory_bytes"), default=None)}


def summarise(data: ReportData) -> Tree:
    """summary.json."""
    benches = {name: benchmark_summary(Bench(data, name)) for name in data.benchmarks}
    first = Bench(data, data.benchmarks[0])
    return {
        "recipes": data.recipes,
        "seeds": data.seeds,
        "confidence": first.confidence,
        **benches[data.benchmarks[0]],
        "benchmarks": benches,
        "stages": data.used,
        "totals": totals(data.used),
        "missing": data.missing,
    }
