"""Retrieval x fine-tuning: success with and without the nearest demonstration shown, for each checkpoint that ran both.

Guarantees: a cell is a mean with its interval and n; the difference is paired by instance and training seed.
"""

from __future__ import annotations

import pandas as pd

from guiderail.report import tables
from guiderail.report.style import SPLIT_NAME
from guiderail.report.summary import Bench, Tree

SUFFIX = "_demo"
TUNING = {"base": "none (base)", "sft": "SFT", "rl": "SFT and RL"}


def ran_both(bench: Bench) -> list[str]:
    """Checkpoints that ran with and without retrieval."""
    present = set(bench.frame["checkpoint"].astype(str))
    return [c for c in bench.checkpoints if f"{c}{SUFFIX}" in present]


def matrix(bench: Bench) -> Tree:
    """`<recipe>.<checkpoint>.<split>` = {without, with, gain}, each {mean, lo, hi, n}."""
    tree: Tree = {}
    for recipe in bench.data.recipes:
        for checkpoint in ran_both(bench):
            for split in bench.splits:
                old, new = (bench.runs(recipe, c, split) for c in (checkpoint, f"{checkpoint}{SUFFIX}"))
                means = (bench.success(recipe, c, split).to_json() for c in (checkpoint, f"{checkpoint}{SUFFIX}"))
                cell = dict(zip(("without", "with"), means, strict=True))
                gain = bench.difference(old, new).to_json()
                tree.setdefault(recipe, {}).setdefault(checkpoint, {})[split] = cell | {"gain": gain}
    return tree


def table(tree: Tree) -> pd.DataFrame:
    """One row per cell of the matrix, all digits."""
    return pd.DataFrame(
        [
            {"recipe": r, "fine_tuning": c, "split": s, "retrieval": kind}
            | {k: cell[kind][k] for k in ("mean", "lo", "hi", "n")}
            for r, checkpoints in tree.items()
            for c, splits in checkpoints.items()
            for s, cell in splits.items()
            for kind in ("without", "with", "gain")
        ]
    )


def reading(bench: Bench, tree: Tree) -> tuple[str, str, pd.DataFrame]:
    """(heading, note, table of texts): fine-tuning down, retrieval across."""
    lines = []
    for recipe, checkpoints in tree.items():
        for checkpoint, splits in checkpoints.items():
            if checkpoint != "rl" and recipe != bench.data.recipes[0]:
                continue  # neither base nor SFT depends on the recipe
            for split, cell in splits.items():
                tail = f" {recipe}" if checkpoint == "rl" and len(bench.data.recipes) > 1 else ""
                lines.append(
                    {
                        "fine-tuning": TUNING[checkpoint] + tail, "split": SPLIT_NAME[split],
                        "without retrieval": tables.interval(cell["without"]),
                        "with retrieval": tables.interval(cell["with"]),
                        "difference": tables.interval(cell["gain"], signed=True), "n": str(cell["gain"]["n"]),
                    }
                )  # fmt: skip
    note = (
        "With retrieval the nearest demonstration of a train task (by instruction and first screen, never of the same "
        "instance) stands before the task. The warm-up has seen no such prompt."
    )
    return "Retrieval and fine-tuning", note, pd.DataFrame(lines)
