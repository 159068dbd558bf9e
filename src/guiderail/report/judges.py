"""What the report shows of process reward models: calibration on held-out templates, as a figure and a table.

Guarantees: the numbers are those of the prm stage's calibration.json, which also opened (or shut) the gate; beside
each judge stands what a table of the facts it is told gets on the same steps; recipes without such a judge do not
appear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from guiderail.report import tables
from guiderail.report.data import ReportData
from guiderail.report.style import GRID, INK, MUTED, NARROW, RECIPES, percent
from guiderail.report.summary import Tree


def summary(data: ReportData) -> Tree:
    """`prm.<recipe>.<seed>`: the figures over all held-out steps."""
    names = ["n", "good", "unread", "invalid_votes", "auroc", "accuracy", "majority", "ece", "brier"]
    names += ["facts", "over_facts"]
    tree: Tree = {}
    for (recipe, seed), found in data.prm.items():
        tree.setdefault(recipe, {})[str(seed)] = {k: found[k] for k in names if k in found}
    return tree


def reliability(data: ReportData, narrow: bool = False) -> Figure:
    """Share of good steps over the judge's probability, one panel per judge; the area of a dot is its steps."""
    size = (NARROW, 3.7 * len(data.prm)) if narrow else (3.6 * len(data.prm) + 0.6, 3.7)
    fig = Figure(figsize=size, layout="constrained")
    axes = fig.subplots(*((len(data.prm), 1) if narrow else (1, len(data.prm))), squeeze=False).ravel()
    for ax, ((recipe, seed), found) in zip(axes, data.prm.items(), strict=True):
        full = [b for b in found["bins"] if b["n"]]
        most = max((b["n"] for b in full), default=1)
        ax.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        ax.plot([b["p"] for b in full], [b["good"] for b in full], color=GRID, linewidth=1.5, zorder=2)
        ax.scatter(
            [b["p"] for b in full], [b["good"] for b in full], s=[20 + 180 * b["n"] / most for b in full],
            color=RECIPES[0], edgecolors="white", zorder=3,
        )  # fmt: skip
        area = found["auroc"]["mean"]
        shown = "no AUROC" if area is None else f"AUROC {area:.2f}"
        shown += (
            f" (facts alone {found['facts']['auroc']['mean']:.2f})" if area is not None and "facts" in found else ""
        )
        title = f"{recipe}, seed {seed}\n{shown}, ECE {found['ece']:.2f}" if full else f"{recipe}: no steps"
        ax.set_title(title, fontsize="medium")
        ax.set_xlabel("judge's probability of +1")
        ax.set_ylabel("steps that were progress")
        ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(-0.02, 1.02)
        percent(ax)
        percent(ax, "x")
        ax.tick_params(colors=INK)
    return fig


def table(data: ReportData) -> pd.DataFrame:
    """Per judge and held-out template, and all of them: AUROC, accuracy, ECE, with the number of steps; AUROC and
    accuracy of the table of facts, and of all steps the judge's AUROC less the table's (none where the stage that
    measured the judge did not measure the table yet)."""
    rows: list[dict[str, Any]] = []
    ends = (("", "mean"), ("_lo", "lo"), ("_hi", "hi"))
    for (recipe, seed), found in data.prm.items():
        told = found.get("facts", {"templates": {}})
        table = {"all": told, **told["templates"]}
        for name, part in [("all", found), *sorted(found["templates"].items())]:
            facts, gain = table.get(name, {}), found.get("over_facts", {}) if name == "all" else {}
            rows.append(
                {"recipe": recipe, "train_seed": seed, "template": name, "n": part["n"], "good": part["good"]}
                | {f"auroc{k}": part["auroc"][v] for k, v in ends}
                | {k: part[k] for k in ("accuracy", "majority", "ece", "brier")}
                | {f"facts_auroc{k}": facts.get("auroc", {}).get(v) for k, v in ends}
                | {"facts_accuracy": facts.get("accuracy")}
                | {f"over_facts{k}": gain.get(v) for k, v in ends}
            )
    return pd.DataFrame(rows)


def reading(frame: pd.DataFrame) -> tuple[str, str, pd.DataFrame]:
    """(heading, note, table of texts) for the pages."""

    def area(r: Mapping[Any, Any], name: str, sign: str = "") -> str:
        missing = r[name] is None or pd.isna(r[name])
        return "n/a" if missing else f"{r[name]:{sign}.3f} [{r[f'{name}_lo']:{sign}.3f}, {r[f'{name}_hi']:{sign}.3f}]"

    lines = []
    for r in frame.to_dict("records"):
        lines.append(
            {
                "recipe": f"{r['recipe']}, seed {r['train_seed']}", "template": r["template"],
                "AUROC": area(r, "auroc"), "facts alone": area(r, "facts_auroc"),
                "difference": area(r, "over_facts", "+") if r["template"] == "all" else "",
                "accuracy": tables.percent(r["accuracy"]), "majority class": tables.percent(r["majority"]),
                "ECE": "n/a" if pd.isna(r["ece"]) else f"{r['ece']:.3f}", "steps": str(r["n"]), "good": str(r["good"]),
            }
        )  # fmt: skip
    note = (
        "Steps on held-out templates, labelled by the state judge. AUROC 0.5 is chance; the majority class is what a "
        "judge that always says the same would get. Facts alone: how often train steps with the same told facts (kind "
        "of step, whether and where the screen changed, whether the agent repeats itself) were good; a judge that is "
        "no better than this table has learned nothing from the frames and the words."
    )
    return "Process reward model", note, pd.DataFrame(lines)
