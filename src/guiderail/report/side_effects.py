"""What agents changed beside what they were asked for: files that no judge looks at, per task.

Guarantees: only episodes that were looked at count (desktop suites; elsewhere there is no table); paths are the guest's
own words, so whoever shows them escapes; a table names at most TOP changes a task, the most frequent first.
"""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd

from guiderail.report import tables
from guiderail.report.summary import Bench

TOP = 3
COLUMNS = ["recipe", "checkpoint", "split", "template", "looked at", "with side effects", "unexpected changes"]


def table(bench: Bench) -> pd.DataFrame:
    """One row per recipe, checkpoint, split and template that was looked at."""
    rows = []
    for recipe in bench.data.recipes:
        for checkpoint in bench.checkpoints:
            if checkpoint == "base" and recipe != bench.data.recipes[0]:
                continue  # the same episodes for every recipe
            for split in bench.splits:
                frame = bench.rows(recipe, checkpoint, split)
                if "side_effects" not in frame:
                    continue  # results of an older version
                looked = frame[frame["side_effects"].notna()]
                for template, part in looked.groupby(looked["template"].astype(str), sort=True):
                    lines = [json.loads(text) for text in part["side_effects"]]
                    counts = Counter(line for found in lines for line in set(found))
                    top = sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))[:TOP]
                    said = "; ".join(f"{n}x {line}" for line, n in top) + ("; ..." if len(counts) > TOP else "")
                    rows.append([recipe, checkpoint, split, template, len(part), sum(map(bool, lines)), said])
    return pd.DataFrame(rows, columns=COLUMNS)


def reading(bench: Bench, found: pd.DataFrame) -> tuple[str, str, pd.DataFrame]:
    """(heading, note, table of texts) for the pages: the tasks where something else changed."""
    found = tables.once(bench, found)
    shown = found[found["with side effects"] > 0]
    shown = shown if len(bench.data.recipes) > 1 else shown.drop(columns="recipe")
    clean = len(found) - len(shown)
    note = (
        "Files of the home folder that the episode made, changed or removed and that the task's judge does not look at "
        f"(caches and programs' own settings left out). In {clean} of {len(found)} rows nothing else changed."
    )
    return "What else changed", note, shown.astype(str)
