"""Where every artefact of the chain lies, relative to the repository root (the directory of params.yaml and dvc.yaml).

Guarantees: these are the outputs that dvc.yaml declares (a test compares them). Every stage reads its inputs through
these functions; it writes to `ctx.out` only, which the runner renames to the declared place.
"""

from __future__ import annotations

from pathlib import Path

RESULTS = Path("results")
WORK = Path(".work")


def provision() -> Path:
    """Task manifest and self-test: tasks.json, selftest.json."""
    return RESULTS / "provision"


def tasks_json() -> Path:
    """The hashed split manifest."""
    return provision() / "tasks.json"


def demos() -> Path:
    """Expert demonstrations: demos.jsonl and frames/<sha256>.png."""
    return RESULTS / "demos"


def sft(seed: int | str) -> Path:
    """Warm-up of one seed: checkpoint/, curves.jsonl, metrics.json."""
    return RESULTS / "sft" / f"seed{seed}"


def prm(recipe: str, seed: int | str) -> Path:
    """Process reward model of one recipe and seed: judge/, metrics.json, steps.jsonl, judged.jsonl."""
    return RESULTS / "prm" / recipe / f"seed{seed}"


def rl(recipe: str, seed: int | str) -> Path:
    """RL run of one recipe and seed: checkpoint/, curves.jsonl, metrics.json, rollouts/."""
    return RESULTS / "rl" / recipe / f"seed{seed}"


def merge(recipe: str, seed: int | str) -> Path:
    """Merged Hugging Face folder."""
    return RESULTS / "merge" / recipe / f"seed{seed}" / "model"


def evaluate(recipe: str, seed: int | str, benchmark: str) -> Path:
    """Benchmark results: episodes.parquet, frames/, metrics.json."""
    return RESULTS / "evaluate" / recipe / f"seed{seed}" / benchmark


def report() -> Path:
    """Report: report.md, *.csv, figures/, summary.json."""
    return RESULTS / "report"
