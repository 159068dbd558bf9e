"""Write the whole report: summary.json, tables (CSV), figures (SVG and PNG), film strips, and what the pages show.

Guarantees: the same inputs give the same bytes; figures and tables are made from one summary, so they cannot disagree.
The pages themselves (report.md, index.html) are laid out in `page`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from guiderail.bench.protocols import PROTOCOLS as RECORDED
from guiderail.report import compare, curves, diagnosis, figures, filmstrip, judges, retrieval, side_effects, tables
from guiderail.report import verdict as verdicts
from guiderail.report.data import ReportData
from guiderail.report.style import SPLIT_NAME, draw, series_label
from guiderail.report.summary import Bench, Tree, summarise
from guiderail.report.viewer import names


@dataclass(frozen=True)
class Picture:
    """A figure of the report: path without suffix below the report folder, that of its narrow form, heading, and what
    it shows in a line."""

    name: str
    narrow: str
    heading: str
    caption: str


@dataclass(frozen=True)
class Strip:
    """A film strip: its PNG, how it is filed, the model's own words per step (unescaped), what the episode is called,
    and the command that plays it again ("": its screens are a recording's)."""

    path: str
    checkpoint: str
    outcome: str
    cause: str
    title: str
    instruction: str
    steps: list[dict[str, str]]
    name: str
    replay: str
    recipe: str


@dataclass
class Section:
    """What the pages show of one benchmark: pictures, ready-to-read tables (heading, note, table), film strips."""

    benchmark: str
    headlines: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[tuple[str, str, pd.DataFrame]] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)


def headline(bench: Bench, tree: Tree, recipe: str) -> str:
    """One sentence: success of each checkpoint on fresh instances, and the gain of RL."""
    split = "fresh" if "fresh" in bench.splits else bench.splits[0]
    parts = []
    for c in bench.checkpoints:
        shown = tables.interval(tree["success"][recipe][c][split])
        parts.append(f"{series_label(c, recipe, bench.data.recipes)} {shown}")
    text = f"{SPLIT_NAME[split]}: " + ", ".join(parts) + "."
    gain = tree.get("gain", {}).get(recipe, {}).get(split)
    if gain and gain["mean"] is not None:
        text += f" Gain of RL over SFT: {tables.interval(gain, signed=True)}, n = {gain['n']}."
    return text


def _picture(
    out: Path, name: str, heading: str, caption: str, make: Callable[[bool], Figure], png: bool = False
) -> Picture:
    """Draw a figure and its narrow form."""
    wide, narrow = f"figures/{name}", f"narrow/{name}"  # apart: not shown again in Snakemake's report
    draw(out / wide, lambda: make(False), png)
    draw(out / narrow, lambda: make(True))
    return Picture(wide, narrow, heading, caption)


def _figures(out: Path, bench: Bench, tree: Tree, templates: pd.DataFrame, prefix: str) -> list[Picture]:
    data, first = bench.data, bench.benchmark == bench.data.benchmarks[0]
    made: list[Picture] = []

    def add(name: str, heading: str, caption: str, make: Callable[[bool], Figure], png: bool = False) -> None:
        made.append(_picture(out, f"{prefix}{name}", heading, caption, make, png))

    add(
        "success", "Success", "Share of tasks solved by each checkpoint, with intervals.",
        lambda narrow: figures.success_bars(bench, tree, narrow), png=True,
    )  # fmt: skip
    add(
        "templates", "Every template", "Success per template for each checkpoint, the hardest at the bottom.",
        lambda narrow: figures.template_dumbbells(bench, templates, narrow),
    )  # fmt: skip
    add(
        "heat", "Every template as a map", "Success in percent: base, SFT and RL on every split.",
        lambda narrow: diagnosis.heat_map(bench, templates, narrow),
    )  # fmt: skip
    ends = "Shares of all planned episodes."
    add("episode-ends", "How episodes end", ends, lambda narrow: figures.episode_ends(bench, narrow))
    if first and curves.rl_panels(data):
        add(
            "rl-curves", "RL training", "Raw values faintly, running mean on top, one line per seed.",
            lambda narrow: curves.rl_curves(data, narrow), png=True,
        )  # fmt: skip
    if first and curves.sft_panels(data):
        add(
            "sft-curves", "SFT training", "Raw values faintly, running mean on top, one line per seed.",
            lambda narrow: curves.sft_curves(data, narrow),
        )  # fmt: skip
    if first and figures.known_seconds(data.used):
        add(
            "stage-seconds", "Where the time went", "Seconds per stage, all attempts of a killed stage included.",
            lambda narrow: figures.stage_seconds(data.used, narrow),
        )  # fmt: skip
    return made


def _steps(row: dict[str, Any]) -> list[dict[str, str]]:
    thoughts, actions, texts = (json.loads(row[k] or "[]") for k in ("thoughts", "actions", "texts"))
    return [
        {
            "thought": str(thought),
            "action": filmstrip.describe(json.loads(action) if action else None),
            "text": str(texts[i]) if i < len(texts) else "",
        }
        for i, (thought, action) in enumerate(zip(thoughts, actions, strict=True))
    ]


def _strips(out: Path, bench: Bench, prefix: str) -> list[Strip]:
    """The film strips that evaluation kept frames for; of several seeds only the first, base and SFT once."""
    made: list[Strip] = []
    data = bench.data
    for recipe in data.recipes:
        point = (recipe, data.seeds[0], bench.benchmark)
        run = f"evaluate/{recipe}/seed{data.seeds[0]}/{bench.benchmark}"
        for n, picked in enumerate(data.metrics[point].get("strips", [])):
            checkpoint, task, number = picked
            if checkpoint != "rl" and recipe != data.recipes[0]:
                continue
            f = data.episodes
            found = f[
                (f["recipe"] == recipe) & (f["train_seed"] == data.seeds[0]) & (f["benchmark"] == bench.benchmark)
                & (f["checkpoint"] == checkpoint) & (f["task"] == task) & (f["episode"] == number)
            ]  # fmt: skip
            row = {str(k): v for k, v in found.iloc[0].to_dict().items()}
            shown = recipe if checkpoint == "rl" and len(data.recipes) > 1 else ""
            label = checkpoint + (f"-{recipe}" if shown else "")
            path = f"figures/strips/{prefix}{label}-{n:02d}-{row['template']}-{row['kind']}.png"
            filmstrip.save(filmstrip.episode_strip(row, data.evaluations[point] / "frames", shown), out / path)
            title = f"{series_label(checkpoint, recipe, data.recipes)} · {row['template']} · {row['split']}"
            name = names.evaluated(run, checkpoint, str(task), int(number))
            replay = "" if names.recorded(run) else names.command(name)
            kind, cause, said = (str(row[k]) for k in ("kind", "cause", "instruction"))
            made.append(Strip(path, checkpoint, kind, cause, title, said, _steps(row), name, replay, recipe))
    return made


def build(data: ReportData, out: Path) -> tuple[Tree, list[Section]]:
    """Write everything but the pages below `out`. Returns the summary and what the pages show."""
    summary = summarise(data)
    summary |= {"prm": judges.summary(data)} if data.prm else {}
    for benchmark in data.benchmarks:
        found = retrieval.matrix(Bench(data, benchmark))
        summary["benchmarks"][benchmark] |= {"retrieval": found} if found else {}
    summary |= {k: v for k, v in summary["benchmarks"][data.benchmarks[0]].items() if k == "retrieval"}
    for name, tree in summary["benchmarks"].items():
        if name in RECORDED:
            tree["scores"] = compare.recorded_scores(Bench(data, name))
    compared = summary["comparison"] = compare.comparison(data, summary["benchmarks"])
    tables.write(compare.table(compared), out / "comparison.csv")
    best = Bench(data, data.benchmarks[0])
    against = summary["versus"] = verdicts.versus(best)
    tables.write(verdicts.table(against), out / "versus.csv")
    summary["verdict"] = verdicts.sentence(compared, against, best.confidence)
    (out / "summary.json").write_text(json.dumps(summary, indent=1, sort_keys=True, allow_nan=False) + "\n")
    sections = []
    for benchmark in data.benchmarks:
        bench, tree = Bench(data, benchmark), summary["benchmarks"][benchmark]
        prefix = "" if benchmark == data.benchmarks[0] else f"{benchmark}-"
        frames = {
            "success": tables.success_table(bench, tree),
            "gains": tables.gain_table(bench, tree),
            "domains": tables.group_table(bench, "domain"),
            "templates": tables.group_table(bench, "template"),
            "excluded": tables.excluded_table(bench),
            "failures": diagnosis.causes(bench),
            "worse": diagnosis.worse(bench),
        }
        for name, frame in frames.items():
            tables.write(frame, out / f"{prefix}{name}.csv")
        section = Section(benchmark, [headline(bench, tree, r) for r in data.recipes])
        section.pictures = _figures(out, bench, tree, frames["templates"], prefix)
        section.tables = tables.reading(bench, tree, frames)
        section.tables[2:2] = diagnosis.reading(bench, frames["failures"], frames["worse"])
        changed = side_effects.table(bench)
        if len(changed):
            tables.write(changed, out / f"{prefix}side_effects.csv")
            section.tables.append(side_effects.reading(bench, changed))
        if "retrieval" in tree:
            tables.write(retrieval.table(tree["retrieval"]), out / f"{prefix}retrieval.csv")
            section.tables.append(retrieval.reading(bench, tree["retrieval"]))
        if data.prm and benchmark == data.benchmarks[0]:
            tables.write(judges.table(data), out / "prm.csv")
            section.tables.append(judges.reading(judges.table(data)))
            caption = "What the process reward model says against what the state judge says, on held-out templates."
            shown = partial(judges.reliability, data)
            section.pictures.append(_picture(out, "prm-reliability", "Judge of steps", caption, shown))
        if "scores" in tree:
            note = "Trajectories done whole (TSR), mean share of steps before the first miss (PG), and their mean."
            if RECORDED[benchmark] != "sop":
                note = "Trajectories with every step right (TSR), mean share of right steps (PG), and their mean."
            note += compare.at_best(bench)
            section.tables.insert(0, ("Recorded trajectories", note, tables.once(bench, compare.recorded_table(tree))))
        if benchmark == data.benchmarks[0] and compared:
            note = (
                "Costs of the rl stage, means over seeds. Per point: of gain over SFT; bounds from the gain's interval."
            )
            section.tables.insert(0, ("Recipes compared", note, compare.reading(compared)))
            if against:
                section.tables.insert(1, verdicts.reading(bench, compared, against))
        section.strips = _strips(out, bench, prefix)
        sections.append(section)
    tables.write(tables.usage_table(data.used), out / "stages.csv")
    if data.selftest:
        tables.write(tables.selftest_table(data.selftest), out / "selftest.csv")
    return summary, sections
