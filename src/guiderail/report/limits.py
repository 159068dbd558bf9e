"""What these numbers cannot show, in sentences computed from the numbers.

Guarantees: a sentence stands there exactly when the data makes it true, with the figure that makes it so; without a
limitation there is none to read. Like cases share a sentence, however many recipes and benchmarks there are; groups and
sentences come weightiest first. It knows what was measured, not what should have been.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from guiderail.report import origins
from guiderail.report.data import ReportData
from guiderail.report.summary import Bench, Tree
from guiderail.report.tables import sure

FEW_SEEDS, WIDE, COVERED, FEW_TEMPLATES, FEW_INSTANCES, MANY_UNREADABLE = 5, 0.10, 0.99, 10, 30, 0.05
NAMED = 3
"""Cases of a sentence that are named; more are counted."""

Group = tuple[str, list[str]]


def limits(data: ReportData, summary: Tree) -> list[Group]:
    """(heading, sentences) of the limitations of a report; a group without one is left out."""
    benches = [(Bench(data, name), summary["benchmarks"][name]) for name in data.benchmarks]
    groups = [
        ("Chance", [*_seeds(len(data.seeds)), *_gains(benches)]),
        ("Tasks", list(_tasks([b for b, _ in benches]))),
        ("Episodes", list(_episodes(benches))),
        ("Records", list(_records(data))),
    ]
    return [(heading, said) for heading, said in groups if said]


def _seeds(seeds: int) -> Iterator[str]:
    if seeds == 1:
        yield "One training seed: how far another run would land is unknown, and no interval holds it."
    elif seeds < FEW_SEEDS:
        yield f"{seeds} training seeds: the spread between runs is known roughly only, so intervals are wide."


def _gains(benches: list[tuple[Bench, Tree]]) -> Iterator[str]:
    cells = {
        (bench.benchmark, recipe, split): cell
        for bench, tree in benches
        for recipe, by_split in tree.get("gain", {}).items()
        for split, cell in by_split.items()
        if cell["mean"] is not None
    }
    chance = [k for k, c in cells.items() if not sure(c)]
    if chance:
        yield (
            f"{len(chance)} of {len(cells)} gains of RL over SFT may be chance, since the interval holds zero: "
            f"{_by_benchmark(chance, len(benches) > 1)}."
        )
    widths = {k: c["hi"] - c["lo"] for k, c in cells.items() if c["hi"] - c["lo"] > WIDE}
    if widths:
        widest = max(widths, key=lambda k: (widths[k], k))
        yield (
            f"{len(widths)} of {len(cells)} of their intervals are wider than {100 * WIDE:.0f} points, the widest "
            f"{100 * widths[widest]:.0f} ({_by_benchmark([widest], len(benches) > 1)}): smaller differences cannot be "
            "told apart there."
        )


def _by_benchmark(keys: Iterable[tuple[str, str, str]], several: bool) -> str:
    """`grpo (train, heldout), step_wise (heldout) in miniwob; ...`."""
    found: dict[str, dict[str, list[str]]] = {}
    for benchmark, recipe, split in keys:
        found.setdefault(benchmark, {}).setdefault(recipe, []).append(split)
    return "; ".join(
        ", ".join(f"{r} ({', '.join(s)})" for r, s in recipes.items()) + (f" in {name}" if several else "")
        for name, recipes in found.items()
    )


def _tasks(benches: list[Bench]) -> Iterator[str]:
    suites = sorted({str(s) for bench in benches for s in bench.frame["suite"].unique()})
    if len(suites) == 1:
        yield f"One suite ({suites[0]}): nothing here speaks of other environments."
    held = {b.benchmark: int(b.frame[b.frame["split"] == "heldout"]["template"].nunique()) for b in benches}
    few = {k: n for k, n in held.items() if 0 < n < FEW_TEMPLATES}
    if few:
        yield f"{_counts(few)} held-out templates: what they say about other new tasks is anecdote."
    sizes: dict[str, int] = {}
    for bench in benches:
        per = bench.frame.drop_duplicates(["split", "template", "task"]).groupby(["split", "template"], observed=True)
        sizes |= {bench.benchmark: int(per.size().min())} if len(bench.frame) else {}
    small = {k: n for k, n in sizes.items() if n < FEW_INSTANCES}
    if small:
        yield f"Some templates have only {_counts(small)} instances: read single templates as hints."


def _counts(found: Mapping[str, int]) -> str:
    """`8`, or `8 (miniwob), 4 (sop)` where benchmarks differ."""
    if len(set(found.values())) == 1:
        return str(next(iter(found.values())))
    return ", ".join(f"{n} ({name})" for name, n in found.items())


def _episodes(benches: list[tuple[Bench, Tree]]) -> Iterator[str]:
    lost: list[tuple[float, str]] = []
    for _, tree in benches:
        for recipe, by_checkpoint in tree["coverage"].items():
            for checkpoint, by_split in by_checkpoint.items():
                for split, c in by_split.items():
                    if c["share"] is not None and c["share"] < COVERED:
                        said = f"{c['planned'] - c['measured']} of {c['planned']} ({checkpoint} {recipe}, {split})"
                        lost.append((c["share"], said))
    if lost:
        yield f"Episodes without a result, counted neither way: {_named([said for _, said in sorted(lost)])}."
    many = []
    for bench, _ in benches:
        for checkpoint in bench.checkpoints:
            rows = bench.frame[bench.frame["checkpoint"] == checkpoint]
            share = float((rows["parse_failures"].fillna(0) > 0).mean()) if len(rows) else 0.0
            if share > MANY_UNREADABLE:
                where = f" in {bench.benchmark}" if len(benches) > 1 else ""
                many.append(f"{100 * share:.0f} % ({checkpoint}{where})")
    if many:
        yield f"Something could not be read or done in many episodes: {_named(many)}."


def _named(said: list[str]) -> str:
    more = f" and {len(said) - NAMED} more" if len(said) > NAMED else ""
    return ", ".join(said[:NAMED]) + more


def _records(data: ReportData) -> Iterator[str]:
    records: dict[str, dict[str, Any]] = origins.read(data)
    dirty = [n for n, r in records.items() if (r.get("git") or {}).get("dirty")]
    if dirty:
        yield f"{len(dirty)} of {len(records)} outputs were made by code with uncommitted changes, e.g. {dirty[0]}."
    unknown = [n for n, r in records.items() if not (r.get("git") or {}).get("commit")]
    if unknown:
        yield f"Of {len(unknown)} outputs the commit is not recorded, e.g. {unknown[0]}."
    if data.missing:
        yield f"{len(data.missing)} inputs of this report are missing, e.g. {data.missing[0]}."
