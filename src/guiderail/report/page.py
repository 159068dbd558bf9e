"""The two pages: report.md beside its figures, and index.html that holds everything in one file.

Guarantees: index.html loads nothing from anywhere (images inline, a content security policy that forbids the rest) and
every text that comes from data is escaped, so that what a model wrote is shown and never interpreted.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from guiderail.report import diagnosis, limits, origins, tables
from guiderail.report.build import Section
from guiderail.report.data import ReportData
from guiderail.report.style import series_colour
from guiderail.report.summary import Tree

TEMPLATE = Path(__file__).with_name("page.html")
NOTES = (
    "Success is the share of measured episodes whose page reports the full reward. Episodes that the environment or "
    "the judge spoiled are run again, and if that fails they are excluded from every mean and counted.",
    "Train instances were played in training. Fresh instances belong to the same templates, with seeds no stage of "
    "training has seen. Held-out templates were never trained on.",
    "Intervals come from a bootstrap within templates; over several training seeds the seeds are drawn as well. Gains "
    "are paired: the same instances under both checkpoints. Single templates have Wilson intervals.",
)


def _memory_note(data: ReportData) -> str:
    """What the peak memory of the cost table is."""
    note = "Peak memory is the largest sum, over a stage and its child processes, of "
    if set(data.rss_only) == {k for k, v in data.used.items() if v["peak_memory_bytes"] is not None}:
        return note + "resident set sizes (RSS): pages that processes share count once per process, an upper bound."
    note += "proportional set sizes (PSS): pages that processes share count once."
    if data.rss_only:
        note += f" For {', '.join(data.rss_only)} only resident set sizes are recorded, an upper bound."
    return note


def write_markdown(path: Path, title: str, data: ReportData, summary: Tree, sections: list[Section]) -> None:
    """report.md: relative links to figures, tables in Markdown."""
    escape = tables.escape_markdown
    lines = [f"# {escape(title)}", ""]
    lines += [f"**{escape(summary['verdict'])}**", ""] if summary["verdict"] else []
    for section in sections:
        if len(sections) > 1:
            lines += [f"## Benchmark {escape(section.benchmark)}", ""]
        lines += [f"{escape(h)}\n" for h in section.headlines]
        for picture in section.pictures:
            lines += [f"## {escape(picture.heading)}", "", f"![{escape(picture.caption)}]({picture.name}.svg)", ""]
            lines += [escape(picture.caption), ""]
        for heading, note, table in section.tables:
            lines += [f"## {escape(heading)}", "", *([escape(note), ""] if note else [])]
            lines += [tables.markdown(table)] if len(table) else []
        if section.strips:
            lines += ["## Film strips", ""]
            for s in section.strips:
                lines += [f"![{escape(s.title)}, {escape(s.outcome)}]({s.path})\n", f"{escape(s.name)}\n"]
                lines += [f"    {' '.join(s.replay.split())}\n"] if s.replay else []
    lines += ["## What it cost", "", escape(_memory_note(data)), ""]
    lines += [tables.markdown(tables.costs(data.used, summary["totals"]))]
    lines += ["## Limits of these numbers", ""]
    for heading, said in limits.limits(data, summary):
        lines += [f"**{escape(heading)}**", "", *(f"- {escape(t)}" for t in said), ""]
    for heading, note, table in origins.reading(data):
        lines += [f"## {escape(heading)}", "", escape(note), "", *([tables.markdown(table)] if len(table) else [])]
    lines += ["## How to read this", "", *(f"- {escape(n)}" for n in NOTES), ""]
    if data.missing:
        lines += ["## Missing inputs", "", *(f"- {escape(m)}" for m in data.missing), ""]
    path.write_text("\n".join(lines))


def _inline(path: Path) -> str:
    kind = {".svg": "image/svg+xml", ".png": "image/png"}[path.suffix]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _cards(summary: Tree, data: ReportData) -> list[dict[str, Any]]:
    """The big numbers on top: success per checkpoint on fresh instances, and the gain of RL, for each recipe."""
    made = []
    for recipe in data.recipes:
        tail = f" {recipe}" if len(data.recipes) > 1 else ""
        splits = next(iter(summary["success"][recipe].values()))
        split = "fresh" if "fresh" in splits else next(iter(splits))
        for checkpoint, found in summary["success"][recipe].items():
            if checkpoint != "rl" and recipe != data.recipes[0]:
                continue
            name = {"base": "Base", "sft": "SFT", "rl": f"RL{tail}"}[checkpoint]
            cell = found[split]
            low = "" if cell["mean"] is None else f"{100 * cell['lo']:.1f} to {100 * cell['hi']:.1f} %"
            colour = series_colour(checkpoint, recipe, data.recipes)
            made.append(
                {"name": name, "kind": checkpoint, "value": tables.percent(cell["mean"]), "range": low, "n": cell["n"],
                 "colour": colour}
            )  # fmt: skip
        gain = summary.get("gain", {}).get(recipe, {}).get(split)
        if gain and gain["mean"] is not None:
            value = f"{100 * gain['mean']:+.1f} pp"
            low = f"{100 * gain['lo']:+.1f} to {100 * gain['hi']:+.1f} pp"
            kind = "open" if not tables.sure(gain) else "gain" if gain["mean"] > 0 else "loss"
            said = {"open": ", may be chance", "gain": "", "loss": ", a loss"}[kind]
            made.append(
                {
                    "name": f"RL{tail} over SFT",
                    "kind": kind,
                    "value": value,
                    "range": low + said,
                    "n": gain["n"],
                    "colour": "",
                }
            )
    return made


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    return {"head": list(frame.columns), "rows": [list(map(str, r)) for r in frame.itertuples(index=False)]}


def write_html(path: Path, title: str, data: ReportData, summary: Tree, sections: list[Section]) -> None:
    """index.html, one file; figures are read from the folder `path` lies in."""
    source = TEMPLATE.read_text()
    found = re.search(r"<script>(.*?)</script>", source, re.DOTALL)
    if found is None:
        raise ValueError(f"{TEMPLATE}: has no <script> block; the page's policy names its hash")
    policy = base64.b64encode(hashlib.sha256(found.group(1).encode()).digest()).decode()
    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = env.from_string(source).render(
        title=title,
        verdict=summary["verdict"],
        policy=Markup(f"'sha256-{policy}'"),
        facts=[
            f"recipes: {', '.join(data.recipes)}",
            f"training seeds: {', '.join(map(str, data.seeds))}",
            f"benchmarks: {', '.join(data.benchmarks)}",
            f"{len(data.episodes):,} episodes",
        ],
        cards=_cards(summary, data),
        sections=[
            {
                "benchmark": s.benchmark,
                "headlines": s.headlines,
                "pictures": [(p, _inline(path.parent / f"{p.name}.svg")) for p in s.pictures],
                "tables": [(h, n, _columns(t)) for h, n, t in s.tables],
                "strips": [(x, _inline(path.parent / x.path)) for x in s.strips],
            }
            for s in sections
        ],
        memory_note=_memory_note(data),
        costs=_columns(tables.costs(data.used, summary["totals"])),
        notes=NOTES,
        limits=limits.limits(data, summary),
        origins=[(h, n, _columns(t)) for h, n, t in origins.reading(data)],
        causes=[
            (c, diagnosis.CAUSE.get(c, c.replace("_", " ")))
            for c in sorted({x.cause for s in sections for x in s.strips if x.outcome == "failure"})
        ],
        missing=data.missing,
    )
    path.write_text(page)
