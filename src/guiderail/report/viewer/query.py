"""What a person asks of the index: filters, ranges, text, order and page, as the address of the list holds them.

Guarantees: unknown filters and sort orders are refused by name (BadQuery); every value goes to SQLite as a parameter,
never as text of the statement. Full text: every word must occur, as the beginning of a word; punctuation only
separates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from guiderail.report.viewer.index import SORTS
from guiderail.report.viewer.reading import CELL

RANGES = ("steps", "reward", "iteration", "disagreement")
PAGE, MAX_PAGE = 50, 200


class BadQuery(ValueError):
    """A question that cannot be answered as asked; the text says why."""


@dataclass(frozen=True)
class Query:
    """Which episodes: `chosen` values per category, `ranges` (low, high) per number, `text`, and the order."""

    chosen: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    text: str = ""
    task: str = ""
    sort: str = "id"
    down: bool = True
    page: int = 1
    size: int = PAGE

    @property
    def narrow(self) -> bool:
        """Whether something is asked that only the episodes themselves can answer: a range, or one task."""
        return bool(self.ranges or self.task)

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]]) -> Query:
        """From URL parameters: `<category>=value` (repeatable), `<number>_min`, `<number>_max`, `q`, `sort` (`-` in
        front: descending), `page`, `size`, `task`. Raises BadQuery."""
        chosen: dict[str, set[str]] = {}
        ranges: dict[str, list[float | None]] = {}
        rest: dict[str, str] = {}
        for name, value in pairs:
            number, _, end = name.rpartition("_")
            if name in CELL:
                chosen.setdefault(name, set()).add(value)
            elif number in RANGES and end in ("min", "max"):
                ranges.setdefault(number, [None, None])[end == "max"] = _number(name, value)
            elif name in ("q", "sort", "page", "size", "task"):
                rest[name] = value
            else:
                raise BadQuery(f"no filter {name!r}; there are {', '.join(CELL)}, q, task, sort, page, size")
        sort = rest.get("sort", "-id")
        if sort.lstrip("-") not in (*SORTS, "id"):
            raise BadQuery(f"cannot sort by {sort!r}; there are id, {', '.join(SORTS)}")
        page, size = _number("page", rest.get("page", "1")), _number("size", rest.get("size", str(PAGE)))
        return cls(
            {k: frozenset(v) for k, v in chosen.items()}, {k: (v[0], v[1]) for k, v in ranges.items()},
            rest.get("q", "").strip(), rest.get("task", ""), sort.lstrip("-"), sort.startswith("-"), max(1, int(page)),
            min(MAX_PAGE, max(1, int(size))),
        )  # fmt: skip


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e12:
        raise BadQuery(f"{name}={text[:40]!r}: must be a number")
    return value


def match(text: str) -> str:
    """The FTS5 expression of what a person typed: quoted prefixes, all of which must occur; "" for no word."""
    return " ".join(f'"{w}"*' for w in re.findall(r"\w+", text)[:16])


def conditions(query: Query) -> tuple[list[str], list[Any]]:
    """SQL conditions on `episodes e` of the text, the task and the ranges of `query`, and their parameters."""
    where: list[str] = []
    values: list[Any] = []
    if query.text:
        where.append("e.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(match(query.text) or '""')
    if query.task:
        where.append("e.task = ?")
        values.append(query.task)
    for name, (low, high) in query.ranges.items():
        for sign, value in ((">=", low), ("<=", high)):
            if value is not None:
                where.append(f"e.{name} {sign} ?")  # name is one of RANGES
                values.append(value)
    return where, values
