"""One look for every figure: palette, fonts, axes, and saving with the same bytes every time.

Guarantees: the same data and library versions give byte-equal SVG and PNG (fixed hash salt, no dates, no software tags,
glyphs as paths from the font that ships with matplotlib). Uses no global state: no pyplot, settings only inside `draw`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK, MUTED, GRID, PAPER = "#1f2933", "#66727f", "#e6e9ed", "#ffffff"
GOOD, BAD = "#2e9e6b", "#c8483d"
STAGE = {"base": "#9aa5b1", "sft": "#3f78c9", "rl": "#e8833a"}
RECIPES = ("#e8833a", "#8a5fbf", "#2a9d8f", "#c2457b", "#b08900", "#5b6c9e")
STAGE_NAME = {"base": "Base", "sft": "SFT", "rl": "RL"}
SPLITS = ("train", "fresh", "heldout")
SPLIT_NAME = {"train": "Train instances", "fresh": "Fresh instances", "heldout": "Held-out templates"}
CAUSE = {
    "env_done": "judged wrong",
    "step_limit": "steps ran out",
    "parse_failure": "unreadable action",
    "agent_finish": "said done, was not",
    "agent_fail": "gave up",
}
"""What the report calls each cause of a failed episode, everywhere; the key is its name in files and the explorer."""


def cause_name(cause: str) -> str:
    """A cause in words."""
    return CAUSE.get(cause, cause.replace("_", " "))


RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 10,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#c5ccd3",
    "axes.linewidth": 0.9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.9,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "text.parse_math": False,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.1,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "guiderail",
    "svg.fonttype": "path",
    "path.simplify": True,
}
DPI = 170
WIDTH, NARROW = 8.4, 4.2
"""Inches across: a figure, and its second form for a phone, where its panels stand below each other."""


def series_label(checkpoint: str, recipe: str, recipes: Sequence[str]) -> str:
    """Name of a bar or dot: "Base", "SFT", "RL", or "RL grpo" when several recipes are compared."""
    name = STAGE_NAME.get(checkpoint, checkpoint)
    return f"{name} {recipe}" if checkpoint == "rl" and len(recipes) > 1 else name


def series_colour(checkpoint: str, recipe: str, recipes: Sequence[str]) -> str:
    """Colour of a checkpoint; every recipe's RL has its own."""
    if checkpoint == "rl" and recipe in recipes:
        return RECIPES[list(recipes).index(recipe) % len(RECIPES)]
    return STAGE.get(checkpoint, MUTED)


def percent(ax: Axes, axis: str = "y") -> None:
    """Write the ticks of a 0..1 axis as percent."""
    target = ax.yaxis if axis == "y" else ax.xaxis
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 2):g} %"))


def by_rows(items: Sequence[Any], columns: int) -> list[Any]:
    """`items` in the order in which a legend, which fills its columns one after the other, reads them row by row."""
    return [x for c in range(columns) for x in items[c::columns]]


def across(recipes: Sequence[str], narrow: bool) -> int:
    """Entries in a row of a legend of checkpoints."""
    return 6 if not narrow else 3 if len(recipes) == 1 else 2


def legend_above(fig: Figure, ax: Axes, columns: int = 6) -> None:
    """A legend at the top left of the figure that reads row by row and takes no room from the data."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        columns = -(-len(handles) // -(-len(handles) // columns))  # as few rows as fit, all about as long
        fig.legend(
            by_rows(handles, columns), by_rows(labels, columns), loc="outside upper left", ncols=columns,
            handlelength=1.1, columnspacing=1.4,
        )  # fmt: skip


def draw(path: Path, make: Callable[[], Figure], png: bool = False) -> None:
    """Make a figure and save it as `path`.svg, with `png` as `path`.png too (which costs as much again)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(RC):
        fig = make()
        fig.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
        if png:
            fig.set_layout_engine("none")  # everything stands where the first saving has put it
            fig.savefig(path.with_suffix(".png"), dpi=DPI, metadata={"Software": None})
