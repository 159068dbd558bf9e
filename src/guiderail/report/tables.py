"""Tables of the report, as data frames that are written both as CSV (all digits) and as Markdown (for reading).

Guarantees: every success figure stands with its interval and n; a cell of Markdown cannot break its table or start
markup (pipes, line ends and markup characters of names and model text are escaped).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from guiderail.bench import records
from guiderail.bench.stats import Interval, success, wilson
from guiderail.report.summary import Bench, Tree

_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|~#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def escape_markdown(text: object) -> str:
    """Any text as one harmless line of Markdown."""
    return " ".join(str(text).split()).translate(_MARKUP)


def prose(text: str) -> str:
    """Text as Markdown that can start nothing but the code between its backticks."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(p if n % 2 else p.translate(_MARKUP) for n, p in enumerate(parts))


def percent(value: Any, digits: int = 1) -> str:
    """0.1234 -> "12.3 %"; nothing -> "n/a"."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "n/a" if missing else f"{100 * value:.{digits}f} %"


def interval(tree: Tree, signed: bool = False) -> str:
    """{mean, lo, hi} as "62.1 % [58.0, 66.0]"; with `signed` as percentage points."""
    if tree["mean"] is None:
        return "n/a"
    if signed:
        return f"{100 * tree['mean']:+.1f} pp [{100 * tree['lo']:+.1f}, {100 * tree['hi']:+.1f}]"
    return f"{100 * tree['mean']:.1f} % [{100 * tree['lo']:.1f}, {100 * tree['hi']:.1f}]"


def sure(tree: Tree) -> bool:
    """Whether the interval of a difference leaves zero out."""
    return tree["lo"] is not None and (tree["lo"] > 0 or tree["hi"] < 0)


@dataclass(frozen=True)
class Link:
    """A cell that leads to a quoted address."""

    text: str
    address: str

    def __str__(self) -> str:
        return self.text


def worded(frame: pd.DataFrame) -> list[bool]:
    """Per column whether it holds words (it aligns left) and not figures (it aligns right): a column of figures has
    one in every second of its cells that say something."""
    made = []
    for n in range(len(frame.columns)):
        said = [str(v) for v in frame.iloc[:, n] if str(v) not in ("", "n/a")]
        figures = sum(re.match(r"[-+]?\d", v) is not None and "x " not in v[:6] for v in said)
        made.append(n == 0 or (bool(said) and 2 * figures < len(said)))
    return made


def markdown(frame: pd.DataFrame) -> str:
    """A frame of ready texts as a Markdown table; columns of figures align right."""

    def cell(value: Any) -> str:
        said = escape_markdown(value)
        return f"[{said}]({value.address})" if isinstance(value, Link) else said

    head = "| " + " | ".join(escape_markdown(c) for c in frame.columns) + " |"
    rule = "| " + " | ".join(":--" if w else "--:" for w in worded(frame)) + " |"
    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join([head, rule, *rows]) + "\n"


def once(bench: Bench, frame: pd.DataFrame, column: str = "checkpoint") -> pd.DataFrame:
    """A table for reading in which base and SFT stand once, on top, as recipe `all`, where no recipe changes them.
    `column` has a checkpoint, or two as `base -> sft`."""
    known: dict[str, bool] = {c: bench.shared(c) for c in bench.checkpoints}
    shared = pd.Series([all(known.get(c, False) for c in str(v).split(" -> ")) for v in frame[column]], dtype=bool)
    frame = frame.reset_index(drop=True).assign(shared=shared)
    frame = frame[~frame["shared"] | (frame["recipe"] == frame.loc[frame["shared"], "recipe"].min())]
    frame = frame.assign(recipe=frame["recipe"].mask(frame["shared"], "all"))
    return frame.sort_values("shared", ascending=False, kind="stable", ignore_index=True).drop(columns="shared")


def _flat(prefix: dict[str, Any], i: Interval) -> dict[str, Any]:
    return {**prefix, "mean": i.mean, "lo": i.lo, "hi": i.hi, "n": i.n}


def success_table(bench: Bench, tree: Tree) -> pd.DataFrame:
    """Recipe, checkpoint, split: success, interval over instances and over templates, n, coverage, steps, failures."""
    rows = []
    for recipe in bench.data.recipes:
        for checkpoint in bench.checkpoints:
            for split in bench.splits:
                names = ("success", "success_over_templates", "episodes", "coverage", "excluded")
                s, t, e, c, x = (tree[name][recipe][checkpoint][split] for name in names)
                rows.append(
                    {
                        "recipe": recipe, "checkpoint": checkpoint, "split": split,
                        **{k: s[k] for k in ("mean", "lo", "hi", "n")},
                        "lo_templates": t["lo"], "hi_templates": t["hi"],
                        "coverage": c["share"], "steps_mean": e["steps_mean"], "parse_failures": e["parse_failures"],
                        "excluded": sum(x.values()),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def gain_table(bench: Bench, tree: Tree) -> pd.DataFrame:
    """Paired differences per recipe and split: base -> SFT, SFT -> RL, base -> RL."""
    names = {"gain_sft": "base -> sft", "gain": "sft -> rl", "gain_total": "base -> rl"}
    return pd.DataFrame(
        [
            {"recipe": r, "step": names[key], "split": s, **{k: tree[key][r][s][k] for k in ("mean", "lo", "hi", "n")}}
            for key in names
            if key in tree
            for r in bench.data.recipes
            for s in bench.splits
        ]
    )


def group_table(bench: Bench, column: str) -> pd.DataFrame:
    """Success per value of `column` (domain or template): Wilson interval on one seed, bootstrap over several."""
    rows = []
    for recipe in bench.data.recipes:
        for split in bench.splits:
            for checkpoint in bench.checkpoints:
                found = bench.rows(recipe, checkpoint, split)
                for name, part in found.groupby(column, sort=True):
                    key = {"recipe": recipe, "split": split, column: str(name), "checkpoint": checkpoint}
                    if column == "template":
                        key["domain"] = str(part["domain"].iloc[0])
                    rows.append(_flat(key, _group_interval(bench, recipe, checkpoint, split, column, str(name))))
    return pd.DataFrame(rows)


def _group_interval(bench: Bench, recipe: str, checkpoint: str, split: str, column: str, name: str) -> Interval:
    runs = bench.runs(recipe, checkpoint, split, bench.of(column, name))
    values = [v for r in runs for v in r.values()]
    if len(runs) == 1 and column == "template" and all(v in (0.0, 1.0) for v in values):
        return wilson(int(sum(values)), len(values), bench.confidence)
    return success(runs, bench.template, draws=bench.draws, confidence=bench.confidence)


def wide(frame: pd.DataFrame, column: str, recipe: str, checkpoints: Sequence[str]) -> pd.DataFrame:
    """A group table for reading: one line per split and group, one "mean [lo, hi]" column per checkpoint."""
    rows = []
    for (split, name), part in frame[frame["recipe"] == recipe].groupby(["split", column], sort=False):
        cells = {row["checkpoint"]: row for _, row in part.iterrows()}
        line: dict[str, Any] = {column: name, "split": split}
        for c in checkpoints:
            line[c] = interval({k: _none(cells[c][k]) for k in ("mean", "lo", "hi")}) if c in cells else "n/a"
        line["n"] = str(max(int(r["n"]) for r in cells.values()))
        rows.append(line)
    return pd.DataFrame(rows)


def _none(value: Any) -> Any:
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


def write(frame: pd.DataFrame, path: Path) -> Path:
    """Write a CSV with a fixed number format."""
    frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    return path


def usage_table(stages: Tree) -> pd.DataFrame:
    """Seconds, peak memory, env steps and tokens per stage output, and what of these came from a cache."""
    rows = []
    for name, used in stages.items():
        rows.append({"output": name, **{k: _none(v) for k, v in used.items()}})
    names = ["output", "seconds", "cpu_seconds", "peak_memory_bytes", "env_steps", "replay_steps", "tokens"]
    return pd.DataFrame(rows, columns=[*names, "remembered_steps", "remembered_tokens"])


def selftest_table(found: Tree) -> pd.DataFrame:
    """Success of the scripted expert, of doing nothing and of random actions, per template, as provision measured."""
    rows = [
        {"template": name, **{k: r[k] for k in ("expert", "noop", "random", "instances")}} for name, r in found.items()
    ]
    return pd.DataFrame(rows, columns=["template", "expert", "noop", "random", "instances"])


def excluded_table(bench: Bench) -> pd.DataFrame:
    """Episodes without a result by cause (empty when every episode was measured)."""
    rows = [
        {"recipe": r, "checkpoint": c, "split": s, "cause": cause, "episodes": count}
        for r in bench.data.recipes
        for c in bench.checkpoints
        for s in bench.splits
        for cause, count in records.excluded(bench.rows(r, c, s)).items()
    ]
    return pd.DataFrame(rows, columns=["recipe", "checkpoint", "split", "cause", "episodes"])


def reading(bench: Bench, tree: Tree, frames: dict[str, pd.DataFrame]) -> list[tuple[str, str, pd.DataFrame]]:
    """(heading, note, table of texts) of what the pages show."""
    made: list[tuple[str, str, pd.DataFrame]] = []
    lines = []
    for row in frames["success"].to_dict("records"):
        lines.append(
            {
                "recipe": row["recipe"], "checkpoint": row["checkpoint"], "split": row["split"],
                "success": interval({k: _none(row[k]) for k in ("mean", "lo", "hi")}), "n": str(row["n"]),
                "over templates": _range(row["lo_templates"], row["hi_templates"]),
                "coverage": percent(row["coverage"], 0), "steps": _number(row["steps_mean"]),
                "parse failures": str(row["parse_failures"]), "excluded": str(row["excluded"]),
            }
        )  # fmt: skip
    note = (
        f"{100 * bench.confidence:.0f} % intervals. Success: instances are chance, templates fixed. "
        "Over templates: the templates are chance as well."
    )
    made.append(("Success", note, _shown(lines, bench, "checkpoint")))
    gains = []
    for row in frames["gains"].to_dict("records"):
        shown = interval({k: _none(row[k]) for k in ("mean", "lo", "hi")}, signed=True)
        gains.append(
            {"recipe": row["recipe"], "step": row["step"], "split": row["split"], "gain": shown, "n": str(row["n"])}
        )
    made.append(("Paired gains", "Differences on the same instances.", _shown(gains, bench, "step")))
    for column in ("domain", "template"):
        for recipe in bench.data.recipes:
            tail = f" ({recipe})" if len(bench.data.recipes) > 1 else ""
            table = wide(frames[f"{column}s"], column, recipe, bench.checkpoints)
            made.append((f"By {column}{tail}", "", table))
    tested = selftest_table(bench.data.selftest if bench.benchmark == bench.data.benchmarks[0] else {})
    if len(tested):
        rates = tested.assign(**{k: [percent(v, 0) for v in tested[k]] for k in ("expert", "noop", "random")})
        named = {"noop": "doing nothing", "random": "random clicks"}
        made.append(("Experts and chance", "Self-tests of `provision`.", rates.astype(str).rename(columns=named)))
    if len(frames["excluded"]):
        made.append(("Episodes without a result", "They enter no mean.", once(bench, frames["excluded"]).astype(str)))
    return made


def costs(used: Tree, totals: Tree) -> pd.DataFrame:
    """Seconds, memory, env steps and tokens per output, for reading. Steps and tokens are the work behind an output,
    whoever spent it; remembered ones were played for another output and not again."""
    rows = [{"output": name, **_cost(u)} for name, u in used.items()]
    return pd.DataFrame([*rows, {"output": "all", **_cost(totals)}])


def _cost(used: Tree) -> dict[str, str]:
    memory = used["peak_memory_bytes"]
    names = ("seconds", "env_steps", "tokens", "remembered_steps")
    whole = {k: "" if used.get(k) is None else f"{used[k]:,.0f}" for k in names}
    return {
        "seconds": whole["seconds"], "peak memory": "" if memory is None else f"{memory / 2**30:.2f} GiB",
        "env steps": whole["env_steps"], "of them remembered": whole["remembered_steps"], "tokens": whole["tokens"],
    }  # fmt: skip


def _shown(rows: list[dict[str, Any]], bench: Bench, column: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    if "recipe" not in frame:
        return frame
    return frame.drop(columns="recipe") if len(bench.data.recipes) == 1 else once(bench, frame, column)


def _range(lo: Any, hi: Any) -> str:
    return "n/a" if _none(lo) is None else f"[{100 * lo:.1f}, {100 * hi:.1f}]"


def _number(value: Any) -> str:
    return "n/a" if _none(value) is None else f"{value:.2f}"
