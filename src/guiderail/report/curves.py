"""Learning curves: every logged value faintly, a running mean on top, seeds of a recipe in one colour.

Guarantees: raw values are always visible under the smoothed line; a metric nobody logged has no panel; non-finite
values are gaps, not zeros. Smoothing is a centred running mean that shortens at the ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from guiderail.report.data import ReportData
from guiderail.report.style import MUTED, NARROW, STAGE, legend_above, percent, series_colour, series_label

# (title, names it is logged under, best first, whether it is a share)
RL_PANELS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("Success in rollouts", ("success", "success_rate"), True),
    ("Reward", ("reward_mean", "reward"), False),
    ("KL to the start (nats per token)", ("kl",), False),
    ("Entropy (nats per token)", ("entropy",), False),
    ("Gradient norm", ("grad_norm",), False),
    ("Groups without spread", ("groups_dropped",), False),
    ("Clipped tokens", ("clip_fraction",), True),
    ("Unreadable actions", ("parse_failures",), True),
    ("Largest log-prob gap", ("logprob_gap_max",), False),
)
SFT_PANELS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("SFT loss (nats per token)", ("loss", "train_loss"), False),
    ("SFT token accuracy", ("token_accuracy", "accuracy"), True),
    ("Gradient norm", ("grad_norm",), False),
)


def smooth(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Centred running mean over `window` values, ignoring NaN; shorter at both ends."""
    half = window // 2
    out = np.full(len(values), np.nan)
    for i in range(len(values)):
        part = values[max(0, i - half) : i + half + 1]
        if np.isfinite(part).any():
            out[i] = float(np.nanmean(part))
    return out


def find(frame: pd.DataFrame, names: Sequence[str]) -> str | None:
    """The first of `names` that `frame` has any finite value of."""
    for name in names:
        if name in frame.columns and np.isfinite(frame[name].astype(float)).any():
            return name
    return None


def trace(ax: Axes, frame: pd.DataFrame, name: str, colour: str, label: str | None = None) -> None:
    """Draw one curve: raw values faintly, the running mean on top."""
    rows = frame[["step", name]].astype(float)
    rows = rows[np.isfinite(rows[name])]
    steps, values = rows["step"].to_numpy(), rows[name].to_numpy()
    window = max(3, len(values) // 10 | 1)
    ax.plot(steps, values, color=colour, alpha=0.28, linewidth=1.1)
    ax.plot(steps, smooth(values, window), color=colour, label=label)


def _panels(ax_titles: list[str], narrow: bool) -> tuple[Figure, list[Axes]]:
    columns = 1 if narrow else min(3, len(ax_titles))
    rows = -(-len(ax_titles) // columns)
    size = (NARROW, 0.5 + 1.9 * rows) if narrow else (3.35 * columns if columns > 1 else 6.0, 0.5 + 2.35 * rows)
    fig = Figure(
        figsize=size,
        layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08),
    )
    axes = list(fig.subplots(rows, columns, squeeze=False).ravel())
    for ax in axes[len(ax_titles) :]:
        ax.set_visible(False)
    for ax, title in zip(axes, ax_titles, strict=False):
        ax.set_title(title, fontsize=10.5)
        ax.tick_params(labelsize=8.5)
        ax.margins(x=0.02)
    return fig, axes


Panel = tuple[str, tuple[str, ...], bool]


def sft_panels(data: ReportData) -> list[Panel]:
    """The SFT panels that some seed has values for."""
    return [p for p in SFT_PANELS if any(find(f, p[1]) for f in data.sft.values())]


def rl_panels(data: ReportData) -> list[Panel]:
    """The RL panels that some run has values for."""
    return [p for p in RL_PANELS if any(find(f, p[1]) for f in data.rl.values())]


def sft_curves(data: ReportData, narrow: bool = False) -> Figure:
    """SFT panels, one line per seed."""
    panels = sft_panels(data)
    fig, axes = _panels([p[0] for p in panels], narrow)
    for ax, (_, names, share) in zip(axes, panels, strict=False):
        for frame in data.sft.values():
            name = find(frame, names)
            if name:
                trace(ax, frame, name, STAGE["sft"])
        if share:
            percent(ax)
    fig.supxlabel("Optimiser step", fontsize=9.5, color=MUTED)
    return fig


def rl_curves(data: ReportData, narrow: bool = False) -> Figure:
    """RL panels, one colour per recipe and one line per seed."""
    panels = rl_panels(data)
    fig, axes = _panels([p[0] for p in panels], narrow)
    for ax, (_, names, share) in zip(axes, panels, strict=False):
        draw_rl(ax, data, names)
        if share:
            percent(ax)
            ax.set_ylim(bottom=0)
    if len(data.recipes) > 1:
        legend_above(fig, axes[0], columns=2 if narrow else 6)
    fig.supxlabel("Iteration", fontsize=9.5, color=MUTED)
    return fig


def draw_rl(ax: Axes, data: ReportData, names: Sequence[str]) -> None:
    """One RL metric of all recipes and seeds on given axes."""
    for (recipe, seed), frame in data.rl.items():
        name = find(frame, names)
        if name:
            label = series_label("rl", recipe, data.recipes) if seed == data.seeds[0] else None
            trace(ax, frame, name, series_colour("rl", recipe, data.recipes), label)
