"""Which recipe won and by how much: recipes against each other on the same instances, and one sentence that says it.

Guarantees: a recipe is called the winner only when its paired difference to every other recipe has an interval above
zero; otherwise the sentence says that none can be told apart from the best, and by what margin. Everything is read off
the intervals shown elsewhere in the report. Not corrected for the number of recipes: among many, one may seem to win by
chance.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pandas as pd

from guiderail.report.style import SPLIT_NAME
from guiderail.report.summary import Bench, Tree
from guiderail.report.tables import interval, sure


def split_of(bench: Bench) -> str:
    """The split that recipes are compared on: fresh instances, or the first there is."""
    return "fresh" if "fresh" in bench.splits else bench.splits[0]


def versus(bench: Bench) -> Tree:
    """`{recipe: {other: {mean, lo, hi, n}}}`: success of RL under `recipe` minus that under `other`, on the instances
    of `split_of` measured under both, per training seed."""
    tree: Tree = {}
    if "rl" not in bench.checkpoints:
        return tree
    split = split_of(bench)
    runs = {r: bench.runs(r, "rl", split) for r in bench.data.recipes}
    for one, other in combinations(bench.data.recipes, 2):
        found = bench.difference(runs[other], runs[one]).to_json()
        tree.setdefault(one, {})[other] = found
        tree.setdefault(other, {})[one] = found | {
            "mean": None if found["mean"] is None else -found["mean"],
            "lo": None if found["hi"] is None else -found["hi"],
            "hi": None if found["lo"] is None else -found["lo"],
        }
    return tree


def ranked(compared: Tree) -> list[str]:
    """Recipes with a measured success, the highest first."""
    known = [r for r, c in compared.items() if c["success"]["mean"] is not None]
    return sorted(known, key=lambda r: (-compared[r]["success"]["mean"], r))


def sentence(compared: Tree, against: Tree, confidence: float) -> str:
    """The verdict; "" where no recipe was measured."""
    order = ranked(compared)
    if not order:
        return ""
    best = order[0]
    cell, gain = compared[best]["success"], compared[best]["gain"]
    share = f"{100 * cell['mean']:.1f} % of the {SPLIT_NAME.get(compared[best]['split'], '').lower()}"
    over_sft = _over_sft(gain)
    if len(order) == 1:
        return f"RL ({best}) solves {share}{over_sft and f', {over_sft}'}."
    rivals = {r: against[best][r] for r in order[1:]}
    near = next((r for r in order[1:] if not _above(rivals[r])), None)
    percent = f"{100 * confidence:.0f} % interval"
    if near is None:
        lead = rivals[order[1]]
        return (
            f"{best} wins: it solves {share}, {100 * lead['mean']:.1f} points more than {order[1]}, the next "
            f"({percent} {100 * lead['lo']:.1f} to {100 * lead['hi']:.1f}){over_sft and f' and {over_sft}'}."
        )
    beaten = [r for r in order[1:] if _above(rivals[r])]
    lead = rivals[near]
    margin = "no instance of both was measured" if lead["mean"] is None else interval(lead, signed=True)
    text = f"No recipe wins: {best} solves most, {share}, but {near} cannot be told from it ({margin})"
    if beaten:
        text += f"; {listed(beaten)} {'is' if len(beaten) == 1 else 'are'} behind beyond chance"
    return f"{text}. {best} is {over_sft}." if over_sft else f"{text}."


def _above(cell: Tree) -> bool:
    return cell["lo"] is not None and cell["lo"] > 0


def _over_sft(gain: Tree) -> str:
    """`8.9 points above SFT (6.1 to 11.7)`, with what may be chance called so."""
    if gain.get("mean") is None:
        return ""
    where = "above" if gain["mean"] >= 0 else "below"
    chance = "" if sure(gain) else ", which may be chance"
    lo, hi = sorted((abs(gain["lo"]), abs(gain["hi"])))
    span = f"{100 * lo:.1f} to {100 * hi:.1f}" if sure(gain) else f"{100 * gain['lo']:+.1f} to {100 * gain['hi']:+.1f}"
    return f"{abs(100 * gain['mean']):.1f} points {where} SFT ({span}{chance})"


def table(against: Tree) -> pd.DataFrame:
    """One row per ordered pair, as CSV columns."""
    return pd.DataFrame(
        [{"recipe": a, "other": b, **{k: c[k] for k in ("mean", "lo", "hi", "n")}} for a, row in against.items()
         for b, c in row.items()],
        columns=["recipe", "other", "mean", "lo", "hi", "n"],
    )  # fmt: skip


def reading(bench: Bench, compared: Tree, against: Tree) -> tuple[str, str, pd.DataFrame]:
    """(heading, note, table of texts): each pair once, the better recipe first."""
    rows: list[dict[str, Any]] = []
    for one, other in combinations(ranked(compared), 2):
        cell = against[one][other]
        rows.append(
            {"recipe": one, "against": other, "difference": interval(cell, signed=True), "n": str(cell["n"]),
             "beyond chance": "yes" if sure(cell) else "no"}
        )  # fmt: skip
    note = (
        f"Success of RL on the same {SPLIT_NAME.get(split_of(bench), '').lower()}, the first minus the second. Beyond "
        "chance: the interval leaves zero out; not corrected for the number of pairs."
    )
    return "Recipe against recipe", note, pd.DataFrame(rows)


def listed(names: list[str]) -> str:
    """a; a and b; a, b and c."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
