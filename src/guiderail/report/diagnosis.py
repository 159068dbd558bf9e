"""Where and how the agent fails: causes, templates on which RL is worse than SFT, and a heat map of every template.

Guarantees: a template counts as worse only with its paired difference, interval and n beside it; what went wrong is
counted from the lost instances themselves (SFT solves them, RL does not), never guessed; only measured episodes enter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from guiderail.params import Params
from guiderail.report import figures, filmstrip, tables
from guiderail.report.style import INK, NARROW, SPLIT_NAME, cause_name, series_label
from guiderail.report.summary import Bench

EXPLORER = Params().tracking.explorer
"""Where `guiderail view` answers unless told otherwise."""
SHOWN_FROM = 10
"""Templates with fewer paired instances are left out of the pages (the CSV has them): one instance more or less would
move them by more than ten points."""
WORSE = ["recipe", "split", "template", "sft", "rl", "mean", "lo", "hi", "n", "lost", "what RL does there"]


def causes(bench: Bench) -> pd.DataFrame:
    """Failures by cause for each recipe and checkpoint, all splits: count, share of failures, where most often. Recipes
    as the sweep names them, checkpoints as they are made, the most frequent cause first."""
    rows = []
    for recipe in bench.data.recipes:
        for checkpoint in bench.checkpoints:
            if checkpoint == "base" and recipe != bench.data.recipes[0]:
                continue  # the same episodes for every recipe
            parts = [bench.rows(recipe, checkpoint, s) for s in bench.splits]
            failed = pd.concat(parts)
            failed = failed[failed["kind"] == "failure"]
            for cause, part in failed.groupby(failed["cause"].astype(str), sort=True):
                where = part["template"].astype(str).value_counts()
                top = sorted(where[where == where.max()].index)[0]
                rows.append(
                    {"recipe": recipe, "checkpoint": checkpoint, "cause": str(cause), "episodes": len(part),
                     "share": len(part) / len(failed), "most often on": f"{top} ({where.max()})"}
                )  # fmt: skip
    frame = pd.DataFrame(rows, columns=["recipe", "checkpoint", "cause", "episodes", "share", "most often on"])
    return pd.concat(
        [part.sort_values("episodes", ascending=False, kind="stable") for _, part in frame.groupby(
            ["recipe", "checkpoint"], sort=False)] or [frame], ignore_index=True,
    )  # fmt: skip


def last_act(row: dict[str, Any]) -> str:
    """The last thing an episode did, by kind: `click`, `type`, ... or `nothing readable`."""
    actions = [a for a in json.loads(row["actions"] or "[]")]
    return filmstrip.describe(json.loads(actions[-1])).split(" ")[0] if actions and actions[-1] else "nothing readable"


def worse(bench: Bench) -> pd.DataFrame:
    """Templates on which RL solves fewer of the same instances than SFT, the largest loss first whatever the recipe
    (columns WORSE)."""
    rows: list[dict[str, Any]] = []
    if not {"sft", "rl"} <= set(bench.checkpoints):
        return pd.DataFrame(rows, columns=WORSE)
    for recipe in bench.data.recipes:
        for split in bench.splits:
            before, after = bench.rows(recipe, "sft", split), bench.rows(recipe, "rl", split)
            for template in sorted(set(before["template"].astype(str)) & set(after["template"].astype(str))):
                found = _template(bench, recipe, split, template)
                if found is not None:
                    rows.append({"recipe": recipe, "split": split, "template": template, **found})
    return pd.DataFrame(rows, columns=WORSE).sort_values(["mean", "template", "split", "recipe"], ignore_index=True)


def _template(bench: Bench, recipe: str, split: str, template: str) -> dict[str, Any] | None:
    a, b = (bench.runs(recipe, c, split, bench.of("template", template)) for c in ("sft", "rl"))
    both = [(x[t], y[t]) for x, y in zip(a, b, strict=True) for t in x.keys() & y.keys()]
    difference = sum(y - x for x, y in both) / len(both) if both else 0.0
    if difference >= 0:
        return None
    gain = bench.difference(a, b)
    lost, said = 0, []
    for seed, x, y in zip(bench.data.seeds, a, b, strict=True):
        gone = {t for t in x.keys() & y.keys() if y[t] < x[t]}
        lost += len(gone)
        frame = bench.rows(recipe, "rl", split, seed)
        for row in frame[frame["task"].isin(gone) & (frame["kind"] == "failure")].to_dict("records"):
            said.append((cause_name(str(row["cause"])), last_act({str(k): v for k, v in row.items()})))
    counts = pd.Series([f"{why}; last act: {act}" for why, act in said]).value_counts()
    text = "; ".join(f"{n}x {what}" for what, n in sorted(counts.items(), key=lambda kv: (-kv[1], str(kv[0])))[:2])
    means = {name: sum(v[i] for v in both) / len(both) for i, name in enumerate(("sft", "rl"))}
    return {**means, "mean": gain.mean, "lo": gain.lo, "hi": gain.hi, "n": gain.n, "lost": lost, WORSE[-1]: text}


def reading(bench: Bench, failed: pd.DataFrame, lost: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """(heading, note, table of texts) for the pages."""
    several = len(bench.data.recipes) > 1
    made = []
    if len(failed):
        shown = failed.assign(
            share=[tables.percent(v, 0) for v in failed["share"]], cause=[cause_name(c) for c in failed["cause"]]
        )
        shown = tables.once(bench, shown) if several else shown.drop(columns="recipe")
        made.append(("Why episodes fail", "Failures of all splits together.", shown.astype(str)))
    if {"sft", "rl"} <= set(bench.checkpoints):
        made.append(_lost(lost, several, lambda r: look(bench, r["recipe"], r["split"], r["template"])))
    return made


def look(bench: Bench, recipe: str, split: str, template: str) -> str:
    """Address of RL's failures on a template in the explorer (`viewer.query` reads it)."""
    runs = [("run", f"evaluate/{recipe}/seed{s}/{bench.benchmark}") for s in bench.data.seeds]
    of = [("checkpoint", "rl"), ("split", split), ("template", template), ("outcome", "failure")]
    return f"{EXPLORER}/?{urlencode([*runs, *of], quote_via=quote)}"


def _lost(lost: pd.DataFrame, several: bool, address: Callable[[dict[str, Any]], str]) -> tuple[str, str, pd.DataFrame]:
    heading = "Where RL is worse than SFT"
    everything = [{str(k): v for k, v in r.items()} for r in lost.to_dict("records")]
    rows = [r for r in everything if r["n"] >= SHOWN_FROM]
    small = len(lost) - len(rows)
    left = f"{small} with fewer than {SHOWN_FROM} paired instances are left out (worse.csv has them). " if small else ""
    if not rows:
        said = f"On no template with {SHOWN_FROM} instances or more does RL solve fewer of them than SFT."
        return heading, f"{said} {left}".strip(), pd.DataFrame()
    certain = sum(tables.sure(r) for r in rows)
    note = (
        f"Paired on the same instances, the largest loss first. {certain} of {len(rows)} are beyond chance (the "
        f"interval leaves zero out; among many templates some do so by chance). {left}"
        "New failures are instances that SFT solves and RL does not, out of all that RL "
        "fails there; the last column tells of these alone (the two most frequent ways), not of instances that both "
        "fail. To look at all of RL's failures of a row, run `guiderail view` beside the results and follow the row's "
        f"link, which sets the explorer's filters, for the first row `{address(rows[0])}`."
    )
    table = pd.DataFrame(
        [
            {"template": f"{r['template']}, {r['split']}", **({"recipe": r["recipe"]} if several else {}),
             "SFT to RL": f"{tables.percent(r['sft'], 0)} to {tables.percent(r['rl'], 0)}",
             "difference": tables.interval(r, signed=True), "beyond chance": "yes" if tables.sure(r) else "no",
             "n": str(r["n"]), "new failures": f"{r['lost']} of {round(r['n'] * (1 - r['rl']))}",
             "look": tables.Link("failures", address(r)), WORSE[-1]: r[WORSE[-1]]}
            for r in rows
        ]
    )  # fmt: skip
    return heading, note.strip(), table


def heat_map(bench: Bench, templates: pd.DataFrame, narrow: bool = False) -> Figure:
    """Every template by split: success of each checkpoint and recipe as a coloured cell with its number."""
    splits, series, recipes = bench.splits, figures.series_of(bench), bench.data.recipes
    names = {s: sorted(map(str, templates[templates["split"] == s]["template"].unique())) for s in splits}
    heights = [max(1, len(names[s])) for s in splits]
    width = NARROW if narrow else max(7.4, 2.2 + 1.15 * len(series))
    tall = (2.4 if narrow else 1.2) + 0.29 * sum(heights)
    fig = Figure(figsize=(width, tall), layout="constrained")
    axes = fig.subplots(len(splits), 1, height_ratios=heights, squeeze=False)[:, 0]
    for ax, split in zip(axes, splits, strict=True):
        grid = figures.cells(templates, split, names[split], series)
        ax.imshow(np.ma.masked_invalid(grid), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (y, x), value in np.ndenumerate(grid):
            text = "n/a" if np.isnan(value) else f"{100 * value:.0f}"
            shade = "white" if value > 0.55 else INK
            ax.text(x, y, text, ha="center", va="center", fontsize=8.5, color=shade, in_layout=False)
        ax.set_yticks(range(len(names[split])), names[split], fontsize=8.5, color=INK)
        words = [series_label(c, r, recipes) for c, r in series]
        words = words if narrow else [w.replace(" ", "\n", 1) for w in words]  # neighbours must not touch
        ax.set_xticks(range(len(series)), words, fontsize=9, rotation=90 if narrow else 0)
        ax.xaxis.tick_top()
        ax.set_title(f"{SPLIT_NAME.get(split, split)} (%)")
        ax.grid(visible=False)
        for side in ("left", "bottom", "right", "top"):
            ax.spines[side].set_visible(False)
    return fig
