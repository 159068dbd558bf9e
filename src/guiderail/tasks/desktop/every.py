"""All instances that a desktop template can make, each once: what a self-test that leaves nothing out goes through.

Guarantees: `every(suite, name)` holds each combination of values of the train side and of the held-out side exactly
once (the first seed that draws it), wordings in turn; the first n of it are spread over both sides. Deterministic.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from guiderail.tasks.desktop.suite import SOURCES, TEMPLATES
from guiderail.tasks.desktop.template import Source, wordings
from guiderail.tasks.instances import instance_seed
from guiderail.tasks.types import Split, TaskSpec

SIDES: tuple[tuple[Split, str], ...] = (("train", "train"), ("fresh", "heldout"))
"""Namespace of seeds, and the side of `params` it draws from."""
DRAWS = 200
"""Seeds tried for each combination, on average, before one counts as impossible."""


def combinations(source: Source, side: str) -> int:
    """How many different value sets a side has: no two parameters of an instance have one value."""
    pools = [p[side] for _, p in sorted(source.own.get("params", {}).items())]
    return sum(len(set(values)) == len(values) for values in itertools.product(*pools))


def every(suite: str, name: str, count: int | None = None) -> list[TaskSpec]:
    """All instances of template `name`, or the first `count` (train and held-out in turn)."""
    found = [list(_side(suite, name, split, side, count)) for split, side in SIDES]
    mixed = [t for pair in itertools.zip_longest(*found) for t in pair if t is not None]
    return mixed[:count]


def _side(suite: str, name: str, split: Split, side: str, count: int | None) -> Iterator[TaskSpec]:
    source, template = SOURCES[suite][name], TEMPLATES[suite][name]
    wanted = combinations(source, side)
    seen: set[tuple[str, ...]] = set()
    for i in range(DRAWS * wanted):
        if len(seen) == (wanted if count is None else min(count, wanted)):
            return
        seed = instance_seed(split, name, i)
        values = tuple(source.values(seed)[key] for key in sorted(source.own.get("params", {})))
        if values not in seen:
            wording = len(seen) % len(wordings(source))
            seen.add(values)
            yield TaskSpec(suite, name, seed, split, wording, template.domain, template.max_steps, template.threshold)
    if len(seen) < wanted and count is None:
        raise ValueError(f"{name}: only {len(seen)} of {wanted} value sets of side {side} were drawn")
