"""Figures of results: bars with intervals, templates before and after, how episodes end.

Guarantees: the same checkpoint has the same colour in every figure; text that comes from outside (template and recipe
names) is drawn literally, never read as mathematics or markup; what was not measured is never drawn as zero.
Each function returns a matplotlib Figure; `style.draw` saves it. With `narrow` it is drawn for the width of a phone:
same data, same order, panels below each other. Learning curves are in `curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from guiderail.report.style import (
    CAUSE,
    GOOD,
    INK,
    MUTED,
    NARROW,
    SPLIT_NAME,
    WIDTH,
    across,
    legend_above,
    percent,
    series_colour,
    series_label,
)
from guiderail.report.summary import Bench, Tree

# (how an episode ended, its label, its colour), in stacking order
ENDS = (
    ("success", "Success", GOOD),
    *(
        (f"failure/{cause}", name[0].upper() + name[1:], colour)
        for (cause, name), colour in zip(
            CAUSE.items(), ("#e3a29b", "#f0c987", "#b9a3d6", "#8fb4d9", "#a9cbb7"), strict=True
        )
    ),
    ("failure/other", "Other failure", "#cfd5db"),
    ("excluded", "Not measured", "#3a4651"),
)
DODGE = 0.75
"""Share of a template's row that its marks are spread over, the first series on top."""


def points(value: float) -> str:
    """A difference of shares as signed percentage points, with a true minus sign."""
    return f"{100 * value:+.1f}".replace("-", "\u2212")


def series_of(bench: Bench) -> list[tuple[str, str]]:
    """(checkpoint, recipe) of each bar: base and SFT once, RL once per recipe."""
    first = bench.data.recipes[0]
    shared = [(c, first) for c in bench.checkpoints if c != "rl"]
    return shared + [("rl", r) for r in bench.data.recipes if "rl" in bench.checkpoints]


def success_bars(bench: Bench, tree: Tree, narrow: bool = False) -> Figure:
    """Success per split, one bar per checkpoint with its interval; every recipe's paired gain over SFT below it."""
    under = 0.22 * len(bench.data.recipes)
    shown = [[s] for s in bench.splits] if narrow else [bench.splits]
    size = (NARROW, 0.9 + (2.3 + under) * len(shown)) if narrow else (WIDTH, 4.1 + under)
    fig = Figure(figsize=size, layout="constrained")
    for ax, splits in zip(fig.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        draw_bars(ax, bench, tree, splits)
    legend_above(fig, fig.axes[0], across(bench.data.recipes, narrow))
    notes = (
        f"Whiskers: {100 * bench.confidence:.0f} % bootstrap intervals, templates fixed.",
        "Below: RL minus SFT on the same instances, in points.",
    )
    fig.supxlabel(("\n" if narrow else " ").join(notes), fontsize=8.5, color=MUTED, x=0.01, ha="left")
    return fig


def draw_bars(ax: Axes, bench: Bench, tree: Tree, splits: Sequence[str]) -> None:
    """The bars of `success_bars` for some splits on given axes; all splits have one scale."""
    series, recipes = series_of(bench), bench.data.recipes
    width = 0.78 / len(series)
    top = max((tree["success"][r][c][s]["hi"] or 0.0 for c, r in series for s in bench.splits), default=0.0)
    for i, (checkpoint, recipe) in enumerate(series):
        cells = [tree["success"][recipe][checkpoint][s] for s in splits]
        x = np.arange(len(cells)) + (i - (len(series) - 1) / 2) * width
        means = np.array([c["mean"] or 0.0 for c in cells])
        colour = series_colour(checkpoint, recipe, recipes)
        ax.bar(x, means, width * 0.9, color=colour, label=series_label(checkpoint, recipe, recipes))
        for at, mean, cell in zip(x, means, cells, strict=True):
            if cell["mean"] is None:
                ax.text(at, 0.01, "n/a", ha="center", va="bottom", fontsize=9, color=MUTED)
                continue
            reach = [[mean - cell["lo"]], [cell["hi"] - mean]]
            ax.errorbar(at, mean, reach, color=INK, elinewidth=1.2, capsize=3.5, capthick=1.2)
            said = f"{100 * mean:.0f} %" if len(series) <= 4 else f"{100 * mean:.0f}"  # room for the unit, or none
            ax.text(at, cell["hi"] + 0.018, said, ha="center", va="bottom", fontsize=9.5)
    labels = []
    for split in splits:
        text = SPLIT_NAME[split]
        for recipe in recipes:
            gain = tree.get("gain", {}).get(recipe, {}).get(split)
            if gain and gain["mean"] is not None:
                name = recipe if len(recipes) > 1 else "RL"
                text += f"\n{name} {points(gain['mean'])} [{points(gain['lo'])}, {points(gain['hi'])}]"
        labels.append(text)
    ax.set_xticks(range(len(labels)), labels, color=INK)
    ax.set_ylim(0, min(1.12, top + 0.12))
    ax.set_yticks([t for t in np.arange(0, 1.01, 0.2) if t <= top + 0.12])
    ax.set_ylabel("Success")
    ax.spines["left"].set_visible(False)
    percent(ax)


def template_dumbbells(bench: Bench, table: pd.DataFrame, narrow: bool = False) -> Figure:
    """One row per template with a dot per checkpoint and recipe, each at its own height in the row, so that ties are
    seen: train templates on fresh instances, then held-out templates. Sorted by the last checkpoint's mean over
    recipes."""
    splits = [s for s in ("fresh", "heldout") if s in bench.splits] or bench.splits
    names = {s: ranked(bench, table, s) for s in splits}
    series, recipes = series_of(bench), bench.data.recipes
    heights = [max(1, len(names[s])) for s in splits]
    tall = 0.09 + 0.058 * max(3, len(series))  # inches of a row: its marks overlap in part at most
    fig = Figure(figsize=(NARROW if narrow else WIDTH, 1.7 + tall * sum(heights)), layout="constrained")
    axes = fig.subplots(len(splits), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for ax, split in zip(axes, splits, strict=True):
        y = np.arange(len(names[split]))
        grid = cells(table, split, names[split], series)
        for row in y[::2]:
            ax.axhspan(row - 0.5, row + 0.5, color="#f4f6f8", zorder=0)
        for i, (c, recipe) in enumerate(series):
            ax.scatter(
                grid[:, i], y + DODGE * ((len(series) - 1) / 2 - i) / len(series), s=38,
                color=series_colour(c, recipe, recipes), label=series_label(c, recipe, recipes), zorder=3 + i,
                edgecolors="white", linewidths=0.6, clip_on=False,
            )  # fmt: skip
        ax.set_yticks(y, names[split], color=INK, fontsize=9)
        ax.set_ylim(-0.7, len(y) - 0.3)
        ax.set_title("Train templates, fresh instances" if split == "fresh" and not narrow else SPLIT_NAME[split])
        ax.set_xlim(-0.015, 1.015)
        ax.grid(axis="x")
        ax.grid(axis="y", visible=False)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        percent(ax, "x")
    axes[-1].set_xlabel("Success")
    legend_above(fig, axes[0], across(recipes, narrow))
    return fig


def ranked(bench: Bench, table: pd.DataFrame, split: str) -> list[str]:
    """Templates of a split, the ones that the last checkpoint solves least first."""
    rows = table[(table["split"] == split) & (table["checkpoint"] == bench.checkpoints[-1])]
    means = rows.groupby("template")["mean"].mean()
    return sorted(map(str, means.index), key=lambda t: (float(means[t]) if means[t] == means[t] else -1.0, t))


def cells(table: pd.DataFrame, split: str, names: list[str], series: list[tuple[str, str]]) -> NDArray[np.float64]:
    """Success [template, checkpoint and recipe]; NaN where nothing was measured."""
    found = table[table["split"] == split].set_index(["template", "checkpoint", "recipe"])["mean"].to_dict()
    values = [[found.get((t, c, r)) for c, r in series] for t in names]
    return np.array([[np.nan if v is None else float(v) for v in row] for row in values]).reshape(len(names), -1)


def _end(kind: Any, cause: Any) -> str:
    if kind == "success":
        return "success"
    if kind != "failure":
        return "excluded"
    name = f"failure/{cause}"
    return name if name in {e[0] for e in ENDS} else "failure/other"


def episode_ends(bench: Bench, narrow: bool = False) -> Figure:
    """How episodes end: one stacked bar per checkpoint, one block per split. Shares of all planned episodes."""
    series, recipes = series_of(bench), bench.data.recipes
    lines: list[tuple[float, str, pd.Series]] = []
    titles: list[tuple[float, str]] = []
    y = 0.0
    for split in bench.splits:
        titles.append((y, SPLIT_NAME[split]))
        y += 0.85
        for checkpoint, recipe in series:
            rows = bench.rows(recipe, checkpoint, split)
            ends = pd.Series([_end(k, c) for k, c in zip(rows["kind"], rows["cause"], strict=True)], dtype="object")
            lines.append((y, series_label(checkpoint, recipe, recipes), ends.value_counts(normalize=True)))
            y += 0.85
        y += 0.35
    fig = Figure(figsize=(NARROW if narrow else WIDTH, (1.5 if narrow else 1.1) + 0.36 * y), layout="constrained")
    ax = fig.add_subplot()
    used = [e for e in ENDS if any(shares.get(e[0], 0) > 0 for _, _, shares in lines)]
    for at, _, shares in lines:
        left = 0.0
        for name, _, colour in used:
            share = float(shares.get(name, 0.0))
            ax.barh(at, share, 0.62, left=left, color=colour, edgecolor="white", linewidth=0.8)
            if share >= (0.18 if narrow else 0.055):  # room for its number
                dark = name in ("success", "excluded")
                ax.text(
                    left + share / 2, at, f"{100 * share:.0f} %", ha="center", va="center", fontsize=8.5,
                    color="white" if dark else INK,
                )  # fmt: skip
            left += share
    for _, label, colour in used:
        ax.barh(0, 0, color=colour, label=label)
    for at, title in titles:
        ax.text(0, at + 0.12, title, fontsize=10, fontweight="bold", va="center")
    ax.set_yticks([at for at, _, _ in lines], [label for _, label, _ in lines], color=INK)
    ax.set_ylim(y - 0.4, -0.5)
    ax.set_xlim(0, 1)
    ax.grid(visible=False)
    ax.set_xticks([])
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    legend_above(fig, ax, columns=2 if narrow else len(used) if len(used) <= 5 else 4)
    return fig


def known_seconds(used: Tree) -> list[tuple[str, float]]:
    """(output, seconds) of the outputs whose time was recorded, shortest first."""
    known = [(name, float(u["seconds"])) for name, u in used.items() if u["seconds"] is not None]
    return sorted(known, key=lambda k: (k[1], k[0]))


def stage_seconds(used: Tree, narrow: bool = False) -> Figure:
    """Where the time went: seconds per stage output (at least one is known)."""
    known = known_seconds(used)
    size = (NARROW, 0.9 + 0.46 * len(known)) if narrow else (WIDTH, 0.9 + 0.32 * len(known))
    fig = Figure(figsize=size, layout="constrained")
    ax = fig.add_subplot()
    ax.barh(range(len(known)), [s for _, s in known], 0.36 if narrow else 0.62, color="#6d8fb8")
    longest = known[-1][1]
    for i, (_, seconds) in enumerate(known):
        text = f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
        ax.text(seconds + 0.012 * longest, i, text, va="center", fontsize=9)
    if narrow:  # long names stand above their bars
        for i, (name, _) in enumerate(known):
            ax.text(0, i + 0.38, name, va="center", fontsize=8.5)
        ax.set_yticks([])
        ax.set_ylim(-0.4, len(known) - 0.3)
    else:
        ax.set_yticks(range(len(known)), [name for name, _ in known], color=INK)
    ax.set_xlim(0, longest * (1.3 if narrow else 1.16))
    ax.grid(visible=False)
    ax.set_xticks([])
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    return fig
