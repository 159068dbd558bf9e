"""What of the page stands open and what is folded, in which order: the answer first, then what it rests on.

Guarantees: every picture and table of the sections stands on the page once; a table of every recipe is one fold with a
part for each; ids are unique, and those of the first benchmark bear no name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from guiderail.report.build import Picture, Section

Reading = tuple[str, str, pd.DataFrame]
OPEN = ("Success",)
"""Pictures that stand open."""
OPEN_TABLES = ("Recipes compared", "Recorded trajectories")
TRAINING = ("RL training", "SFT training", "Where the time went")
"""Pictures of the runs and not of a benchmark."""
HINTS = {
    "Where RL is worse than SFT": "on which templates, by how much, and what it does there",
    "Why episodes fail": "how episodes end; causes, how often, on which template",
    "Recipe against recipe": "each pair on the same instances",
    "Success": "every checkpoint and split, with coverage and steps",
    "Paired gains": "base, SFT and RL on the same instances",
    "Every template": "as dots, as a map, as tables",
    "By domain": "success of each checkpoint",
    "Experts and chance": "what a script, doing nothing and random clicks solve",
    "Episodes without a result": "what the environment or the judge spoiled",
    "Retrieval and fine-tuning": "a demonstration in the prompt against training on it",
    "Process reward model": "how far its votes can be trusted",
    "What else changed": "files that no judge looks at",
    "RL training": "reward, success, KL, entropy, gradients",
    "SFT training": "loss and accuracy",
    "Where the time went": "seconds per output",
}
"""What a fold holds, in a few words."""
JOINED = {
    "How episodes end": "Why episodes fail",
    "Every template as a map": "Every template",
    "By template": "Every template",
    "Judge of steps": "Process reward model",
}
"""Pictures and tables that stand in the fold of another."""


@dataclass
class Fold:
    """A part of the page that opens: id, heading, pictures, and tables as (recipe or "", id, note, table)."""

    anchor: str
    heading: str
    pictures: list[Picture] = field(default_factory=list)
    tables: list[tuple[str, str, str, pd.DataFrame]] = field(default_factory=list)

    @property
    def hint(self) -> str:
        """What it holds, in a few words."""
        return HINTS.get(self.heading, "")


class Anchors:
    """Ids that stay unique."""

    def __init__(self) -> None:
        self.made: set[str] = set()

    def of(self, heading: str, benchmark: str) -> str:
        """`heading` as an id, with the benchmark where that is taken."""
        plain = slug(heading)
        found = plain if plain not in self.made else f"{plain}-{slug(benchmark)}"
        self.made.add(found)
        return found


def slug(text: str) -> str:
    """Text as an id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def split(heading: str, recipes: Iterable[str]) -> tuple[str, str]:
    """`By template (grpo)` as ("By template", "grpo"); a heading without a recipe as (heading, "")."""
    recipe = next((r for r in recipes if heading.endswith(f" ({r})")), "")
    return (heading.removesuffix(f" ({recipe})"), recipe) if recipe else (heading, "")


def open_tables(section: Section) -> list[Reading]:
    """Tables of a section that stand open."""
    return [t for t in section.tables if t[0] in OPEN_TABLES]


def folds(section: Section, recipes: list[str], anchors: Anchors) -> list[Fold]:
    """What is folded of a benchmark, in the order of HINTS."""
    made: dict[str, Fold] = {}

    def fold(heading: str) -> Fold:
        if heading not in made:
            made[heading] = Fold(anchors.of(heading, section.benchmark), heading)
        return made[heading]

    for picture in section.pictures:
        if picture.heading not in (*OPEN, *TRAINING):
            fold(JOINED.get(picture.heading, picture.heading)).pictures.append(picture)
    for heading, note, table in section.tables:
        if heading not in OPEN_TABLES:
            plain, recipe = split(heading, recipes)
            into = fold(JOINED.get(plain, plain))
            own = into.anchor if into.heading == heading else anchors.of(heading, section.benchmark)
            into.tables.append((recipe, own, note, table))
    order = list(HINTS)
    return sorted(made.values(), key=lambda f: order.index(f.heading) if f.heading in order else len(order))


def training(section: Section, anchors: Anchors) -> list[Fold]:
    """What is folded of the runs."""
    found = [p for p in section.pictures if p.heading in TRAINING]
    return [Fold(anchors.of(p.heading, section.benchmark), p.heading, [p]) for p in found]
