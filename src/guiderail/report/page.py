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

from guiderail.report import limits, origins, outline, tables
from guiderail.report.build import Picture, Section, Strip
from guiderail.report.data import ReportData
from guiderail.report.style import cause_name, series_colour
from guiderail.report.summary import Tree, distinct

TEMPLATE = Path(__file__).with_name("page.html")
NAMES = (
    "How failed episodes ended, in brackets as the files and the explorer call it. Judged wrong (`env_done`): the page "
    "or the judge ended it without the full reward. Steps ran out (`step_limit`). Unreadable action (`parse_failure`): "
    "what the agent wrote could not be read or done. Said done, was not (`agent_finish`). Gave up (`agent_fail`)."
)
NOTES = (
    "Success is the share of measured episodes whose page reports the full reward. Episodes that the environment or "
    "the judge spoiled are run again, and if that fails they are excluded from every mean and counted.",
    "Train instances were played in training. Fresh instances belong to the same templates, with seeds no stage of "
    "training has seen. Held-out templates were never trained on.",
    "Intervals come from a bootstrap within templates; over several training seeds the seeds are drawn as well. Gains "
    "are paired: the same instances under both checkpoints. Single templates have Wilson intervals.",
    NAMES,
)


LINKED = {
    "Recipes compared": "Recipes compared",
    "Recorded trajectories": "Recordings",
    "Where RL is worse than SFT": "Where RL is worse",
    "Why episodes fail": "Failures",
    "Recipe against recipe": "Recipe against recipe",
    "Success": "Success in figures",
    "Every template": "Templates",
    "Experts and chance": "Experts",
    "Retrieval and fine-tuning": "Retrieval",
    "Process reward model": "Judge of steps",
    "What else changed": "Side effects",
    "RL training": "Training",
}
"""Parts of the page that the navigation leads to, and what it calls them."""


def code(text: str) -> Markup:
    """Text as HTML, what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(Markup.escape(text))))


def soft(text: str) -> Markup:
    """A name that may break after its slashes and underscores."""
    return Markup(re.sub(r"([/_])(?=.)", r"\1<wbr>", str(Markup.escape(text))))


def filters(data: ReportData, sections: list[Section]) -> list[tuple[str, str]]:
    """(tag, label) of each button above the film strips."""
    several = len(data.recipes) > 1
    rl = [(f"rl-{n}", f"RL {r}") for n, r in enumerate(data.recipes)] if several else [("rl", "RL")]
    causes = sorted({x.cause for s in sections for x in s.strips if x.outcome == "failure"})
    return [
        ("all", "All"), ("base", "Base"), ("sft", "SFT"), *rl, ("success", "Successes"), ("failure", "Failures"),
        *((f"cause-{c}", f"Failed: {cause_name(c)}") for c in causes),
    ]  # fmt: skip


def _nav(placed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """(id, label) of the navigation's links, of the (heading, id) on the page: the first of each kind."""
    first: dict[str, str] = {}
    for heading, anchor in placed:
        first.setdefault(heading, anchor)
    return [(first[h], label) for h, label in LINKED.items() if h in first]


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
            lines += [f"## {escape(heading)}", "", *([tables.prose(note), ""] if note else [])]
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
        lines += [f"**{escape(heading)}**", "", *(f"- {tables.prose(t)}" for t in said), ""]
    for heading, note, table in origins.reading(data):
        lines += [
            f"## {escape(heading)}",
            "",
            tables.prose(note),
            "",
            *([tables.markdown(table)] if len(table) else []),
        ]
    lines += ["## How to read this", "", *(f"- {tables.prose(n)}" for n in NOTES), ""]
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
    head = [{"text": c, "left": left} for c, left in zip(frame.columns, tables.worded(frame), strict=True)]
    rows = [
        [{"text": str(v), "address": v.address if isinstance(v, tables.Link) else ""} for v in r]
        for r in frame.itertuples(index=False)
    ]
    return {"head": head, "rows": rows}


def _tags(strip: Strip, data: ReportData) -> str:
    """The tags of `filters` that show a strip."""
    own = ["all", strip.checkpoint, strip.outcome]
    own += [f"rl-{data.recipes.index(strip.recipe)}"] if strip.checkpoint == "rl" else []
    return " ".join([*own, *([f"cause-{strip.cause}"] if strip.outcome == "failure" else [])])


def write_html(path: Path, title: str, data: ReportData, summary: Tree, sections: list[Section]) -> None:
    """index.html, one file; figures are read from the folder `path` lies in."""
    source = TEMPLATE.read_text()
    found = re.search(r"<script>(.*?)</script>", source, re.DOTALL)
    if found is None:
        raise ValueError(f"{TEMPLATE}: has no <script> block; the page's policy names its hash")
    policy = base64.b64encode(hashlib.sha256(found.group(1).encode()).digest()).decode()
    env = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters |= {"code": code, "soft": soft}
    made_by = origins.commits(data)

    def picture(p: Picture) -> dict[str, str]:
        wide, narrow = (_inline(path.parent / f"{name}.svg") for name in (p.name, p.narrow))
        return {"wide": wide, "narrow": narrow, "caption": p.caption}

    def fold(f: outline.Fold) -> dict[str, Any]:
        shown = [{"part": part, "anchor": a, "note": n, "table": _columns(t)} for part, a, n, t in f.tables]
        return {"anchor": f.anchor, "heading": f.heading, "hint": f.hint, "tables": shown,
                "pictures": [picture(p) for p in f.pictures]}  # fmt: skip

    anchors = outline.Anchors()
    answers, groups, placed = [], [], []
    for s in sections:
        tables_of = [(anchors.of(h, s.benchmark), h, n, t) for h, n, t in outline.open_tables(s)]
        placed += [(h, a) for a, h, _, _ in tables_of]
        answers.append(
            {"benchmark": s.benchmark, "tables": [(a, h, n, _columns(t)) for a, h, n, t in tables_of],
             "pictures": [picture(p) for p in s.pictures if p.heading in outline.OPEN]}
        )  # fmt: skip
    for s in sections:
        parts = outline.folds(s, data.recipes, anchors)
        placed += [(f.heading, f.anchor) for f in parts]
        several = f": {s.benchmark}" if len(sections) > 1 else ""
        groups.append((anchors.of(f"details-{s.benchmark}", ""), f"Look closer{several}", [fold(f) for f in parts]))
    runs = [f for s in sections for f in outline.training(s, anchors)]
    placed += [(f.heading, f.anchor) for f in runs]
    page = env.from_string(source).render(
        title=title,
        verdict=summary["verdict"],
        policy=Markup(f"'sha256-{policy}'"),
        facts=[
            f"recipes: {', '.join(data.recipes)}",
            f"training seeds: {', '.join(map(str, data.seeds))}",
            f"benchmarks: {', '.join(data.benchmarks)}",
            f"{distinct(data):,} episodes",
            *([f"{'commit' if len(made_by) == 1 else 'commits'}: {', '.join(made_by)}"] if made_by else []),
        ],
        cards=_cards(summary, data),
        answers=answers,
        groups=groups,
        runs=[fold(f) for f in runs],
        strips=[(x, _tags(x, data), _inline(path.parent / x.path)) for s in sections for x in s.strips],
        memory_note=_memory_note(data),
        costs=_columns(tables.costs(data.used, summary["totals"])),
        notes=NOTES,
        limits=limits.limits(data, summary),
        origins=[(h, n, _columns(t)) for h, n, t in origins.reading(data)],
        filters=filters(data, sections),
        nav=_nav(placed),
        missing=data.missing,
    )
    path.write_text(page)
