"""What these numbers cannot show, in sentences computed from the numbers.

Guarantees: a sentence stands there exactly when the data makes it true, with the figure that makes it so; without a
limitation there is none to read. It knows what was measured, not what should have been.
"""

from __future__ import annotations

from guiderail.report import origins
from guiderail.report.data import ReportData
from guiderail.report.style import SPLIT_NAME
from guiderail.report.summary import Bench, Tree

FEW_SEEDS, WIDE, COVERED, FEW_TEMPLATES, FEW_INSTANCES, MANY_UNREADABLE = 5, 0.10, 0.99, 10, 30, 0.05


def limits(data: ReportData, summary: Tree) -> list[str]:
    """The limitations of a report, the weightiest first."""
    found: list[str] = []
    seeds = len(data.seeds)
    if seeds == 1:
        found.append("One training seed: how far another run would land is unknown, and no interval holds it.")
    elif seeds < FEW_SEEDS:
        found.append(f"{seeds} training seeds: the spread between runs is known roughly only, so intervals are wide.")
    for name in data.benchmarks:
        where = f" ({name})" if len(data.benchmarks) > 1 else ""
        found += [s + where if where else s for s in _of_benchmark(Bench(data, name), summary["benchmarks"][name])]
    dirty = [n for n, r in origins.read(data).items() if (r.get("git") or {}).get("dirty")]
    if dirty:
        found.append(f"{len(dirty)} outputs were made by code with uncommitted changes, e.g. {dirty[0]}.")
    unknown = [n for n, r in origins.read(data).items() if not (r.get("git") or {}).get("commit")]
    if unknown:
        found.append(f"Of {len(unknown)} outputs the commit is not recorded, e.g. {unknown[0]}.")
    if data.missing:
        found.append(f"{len(data.missing)} inputs of this report are missing, e.g. {data.missing[0]}.")
    return found


def _of_benchmark(bench: Bench, tree: Tree) -> list[str]:
    found: list[str] = []
    for recipe, cells in tree.get("gain", {}).items():
        for split, cell in cells.items():
            if cell["mean"] is None:
                continue
            label = f"RL {recipe} over SFT, {SPLIT_NAME.get(split, split).lower()}"
            if cell["lo"] <= 0 <= cell["hi"]:
                found.append(f"{label}: the interval holds zero, so this data shows neither a gain nor a loss.")
            if cell["hi"] - cell["lo"] > WIDE:
                width = 100 * (cell["hi"] - cell["lo"])
                found.append(
                    f"{label}: the interval is {width:.0f} points wide; smaller differences cannot be told apart."
                )
    for recipe, by_checkpoint in tree["coverage"].items():
        for checkpoint, by_split in by_checkpoint.items():
            for split, cell in by_split.items():
                if cell["share"] is not None and cell["share"] < COVERED:
                    lost = cell["planned"] - cell["measured"]
                    found.append(
                        f"{checkpoint} {recipe}, {split}: {lost} of {cell['planned']} episodes gave no result "
                        f"(coverage {100 * cell['share']:.1f} %); they are counted neither way."
                    )
    templates = {s: bench.frame[bench.frame["split"] == s]["template"].nunique() for s in bench.splits}
    for split, n in templates.items():
        if split == "heldout" and n < FEW_TEMPLATES:
            found.append(f"{n} held-out templates: what they say about other new tasks is anecdote.")
    sizes = bench.frame.drop_duplicates(["split", "template", "task"]).groupby(["split", "template"]).size()
    if len(sizes) and sizes.min() < FEW_INSTANCES:
        found.append(f"Some templates have only {sizes.min()} instances: read single templates as hints.")
    for checkpoint in bench.checkpoints:
        rows = bench.frame[bench.frame["checkpoint"] == checkpoint]
        share = float((rows["parse_failures"].fillna(0) > 0).mean()) if len(rows) else 0.0
        if share > MANY_UNREADABLE:
            found.append(f"{checkpoint}: in {100 * share:.0f} % of episodes something could not be read or done.")
    if bench.frame["suite"].nunique() == 1:
        found.append(f"One suite ({bench.frame['suite'].iloc[0]}): nothing here speaks of other environments.")
    return found
