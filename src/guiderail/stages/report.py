"""report: the whole sweep in tables, figures, film strips and two pages.

Reads results/ at the points of `params.sweep`; writes results/report/: summary.json, *.csv, figures/, report.md and
index.html (one file, nothing loaded from elsewhere). Trains and measures nothing.
"""

from __future__ import annotations

from guiderail.report import page
from guiderail.report.build import build
from guiderail.report.data import load
from guiderail.stages import paths
from guiderail.stages.context import StageContext


def run(ctx: StageContext) -> None:
    """Write the report of the sweep in `ctx.params`. Raises ReportError naming an evaluation that is missing."""
    data = load(ctx.params, paths.RESULTS)
    for name in data.missing:
        ctx.say(f"not there, so not in the report: {name}")
    summary, sections = build(data, ctx.out)
    title = ctx.params.report.title
    page.write_markdown(ctx.out / "report.md", title, data, summary, sections)
    page.write_html(ctx.out / "index.html", title, data, summary, sections)
    for section in sections:
        for line in section.headlines:
            ctx.say(line)
        for picture in section.pictures:
            ctx.tracker.figure(ctx.out / f"{picture.name}.svg")
        for strip in section.strips:
            ctx.tracker.figure(ctx.out / strip.path, "strips")
    ctx.tracker.artifact(ctx.out / "summary.json")
    ctx.tracker.artifact(ctx.out / "index.html")
    metrics = {
        f"{kind}.{recipe}.{'.'.join(key)}": value
        for kind in ("success", "gain")
        for recipe, tree in summary.get(kind, {}).items()
        for key, value in _means(tree)
    }
    ctx.tracker.log(metrics, 0)


def _means(tree: dict[str, object], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], float]]:
    """(path, mean) of every {mean, lo, hi, n} below `tree` that has a number."""
    found: list[tuple[tuple[str, ...], float]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and "mean" in value:
            found += [((*path, key), float(value["mean"]))] if value["mean"] is not None else []
        elif isinstance(value, dict):
            found += _means(value, (*path, key))
    return found
