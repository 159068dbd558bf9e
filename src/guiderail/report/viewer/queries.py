"""Questions to the index: a page of episodes with the counts of every filter, a group, the same task elsewhere.

Guarantees: every value goes to SQLite as a parameter, never as text of the statement; unknown filters and sort orders
are refused by name (BadQuery); the counts of a filter's values are what choosing that value would give, the other
filters kept. Full text: every word must occur, as the beginning of a word; punctuation only separates.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guiderail.report.viewer.index import SORTS, Index
from guiderail.report.viewer.reading import CELL

RANGES = ("steps", "reward", "iteration", "disagreement")
PAGE, MAX_PAGE = 50, 200
FEW = 4000
"""Matches up to this many are fetched and sorted; more are walked in the order of the sort's index."""
_SHOWN = (
    "e.id, e.key, e.task, e.grp, e.sibling, e.attempt, e.iteration, e.instruction, e.reward, e.steps, e.tokens, "
    "e.seconds, e.unreadable, e.advantage, e.disagreement, e.frame"
)


class BadQuery(ValueError):
    """A question that cannot be answered as asked; the text says why."""


@dataclass(frozen=True)
class Query:
    """Which episodes: `chosen` values per category, `ranges` (low, high) per number, `text`, and the order."""

    chosen: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    text: str = ""
    sort: str = "id"
    down: bool = True
    page: int = 1
    size: int = PAGE

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]]) -> Query:
        """From URL parameters: `<category>=value` (repeatable), `<number>_min`, `<number>_max`, `q`, `sort` (`-` in
        front: descending), `page`, `size`. Raises BadQuery."""
        chosen: dict[str, set[str]] = {}
        ranges: dict[str, list[float | None]] = {}
        rest: dict[str, str] = {}
        for name, value in pairs:
            number, _, end = name.rpartition("_")
            if name in CELL:
                chosen.setdefault(name, set()).add(value)
            elif number in RANGES and end in ("min", "max"):
                ranges.setdefault(number, [None, None])[end == "max"] = _number(name, value)
            elif name in ("q", "sort", "page", "size"):
                rest[name] = value
            else:
                raise BadQuery(f"no filter {name!r}; there are {', '.join(CELL)}, q, sort, page, size")
        sort = rest.get("sort", "-id")
        if sort.lstrip("-") not in (*SORTS, "id"):
            raise BadQuery(f"cannot sort by {sort!r}; there are id, {', '.join(SORTS)}")
        page, size = _number("page", rest.get("page", "1")), _number("size", rest.get("size", str(PAGE)))
        return cls(
            {k: frozenset(v) for k, v in chosen.items()}, {k: (v[0], v[1]) for k, v in ranges.items()},
            rest.get("q", "").strip(), sort.lstrip("-"), sort.startswith("-"), max(1, int(page)),
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


class Explorer:
    """Answers over one index. Counts are remembered until the index changes."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._counts: OrderedDict[Any, dict[int, int]] = OrderedDict()
        self._cells: tuple[int, list[dict[str, Any]]] = (-1, [])

    def cells(self) -> list[dict[str, Any]]:
        """All cells, {column: value, "id", "n"}."""
        now = self.index.changes()
        if self._cells[0] != now:
            self._cells = (now, [dict(r) for r in self.index.reader().execute("SELECT * FROM cells WHERE n > 0")])
        return self._cells[1]

    def _matching(self, query: Query) -> dict[int, int]:
        """Episodes per cell under the text and the ranges of `query` (its categories left aside)."""
        if not query.text and not query.ranges:
            return {c["id"]: c["n"] for c in self.cells()}
        key = (self.index.changes(), query.text, tuple(sorted(query.ranges.items())))
        if key not in self._counts:
            where, values = _conditions(query)
            source = "episodes e"
            rows = self.index.reader().execute(
                f"SELECT e.cell, count(*) FROM {source} WHERE {' AND '.join(where)} GROUP BY e.cell", values
            )
            self._counts[key] = dict(tuple(r) for r in rows)
            while len(self._counts) > 64:
                self._counts.popitem(last=False)
        return self._counts[key]

    def page(self, query: Query) -> dict[str, Any]:
        """{total, all, page, pages, episodes: rows, facets: {category: [[value, count], ...]}}."""
        cells, counts = self.cells(), self._matching(query)
        facets = {name: _facet(cells, counts, query.chosen, name) for name in CELL}
        wanted = [c for c in cells if counts.get(c["id"]) and _kept(c, query.chosen)]
        total = sum(counts[c["id"]] for c in wanted)
        pages = max(1, -(-total // query.size))
        number = min(query.page, pages)
        rows = self._rows(query, [c["id"] for c in wanted], total, (number - 1) * query.size) if total else []
        by_id = {c["id"]: c for c in cells}
        return {
            "total": total, "all": sum(c["n"] for c in cells), "page": number, "pages": pages, "facets": facets,
            "episodes": [_row(r, by_id) for r in rows], "changes": self.index.changes(),
            "judged": self._any("disagreement"), "trained": self._any("advantage"),
        }  # fmt: skip

    def _any(self, column: str) -> bool:
        sql = f"SELECT 1 FROM episodes WHERE {column} IS NOT NULL LIMIT 1"
        return self.index.reader().execute(sql).fetchone() is not None

    def _rows(self, query: Query, cells: Sequence[int], total: int, offset: int) -> list[sqlite3.Row]:
        where, values = _conditions(query)
        everything = len(cells) == len(self.cells())
        if not everything:
            where.append(f"e.cell IN ({','.join(map(str, cells))})")  # our own integers
        direction = "DESC" if query.down else "ASC"
        # a unary plus keeps SQLite from walking the sort's index through all that does not match
        column = f"+e.{query.sort}" if total <= FEW and (where or not everything) else f"e.{query.sort}"
        order = f"e.id {direction}" if query.sort == "id" else f"{column} {direction} NULLS LAST, e.id {direction}"
        if query.sort == "id" and column.startswith("+"):
            order = f"+e.id {direction}"
        sql = (
            f"SELECT {_SHOWN}, e.cell FROM episodes e {'WHERE ' + ' AND '.join(where) if where else ''} "
            f"ORDER BY {order} LIMIT ? OFFSET ?"
        )
        return self.index.reader().execute(sql, [*values, query.size, offset]).fetchall()

    def one(self, key: str) -> dict[str, Any] | None:
        """The row of an episode with its source; an attempt's key finds the finished run's episode, and the reverse."""
        other = key.removeprefix("live/") if key.startswith("live/") else f"live/{key}"
        for name in (key, other):
            found = self.index.reader().execute(
                f"SELECT {_SHOWN}, e.cell, e.number, s.path, s.kind skind, s.root, s.live FROM episodes e "
                "JOIN sources s ON s.id = e.source WHERE e.key = ? ORDER BY e.id DESC LIMIT 1", (name,)
            ).fetchone()  # fmt: skip
            if found:
                number, path, root = found["number"], found["path"], found["root"]
                return _row(found, self._by_id()) | {
                    "number": number,
                    "path": path,
                    "root": root,
                    "live": found["live"],
                }
        return None

    def group(self, run: str, group: str) -> list[dict[str, Any]]:
        """The siblings of a group of a run, all attempts, in order."""
        rows = self.index.reader().execute(
            f"SELECT {_SHOWN}, e.cell FROM episodes e WHERE e.grp = ? ORDER BY e.sibling, e.attempt", (group,)
        )
        return [r for r in (_row(r, self._by_id()) for r in rows) if r["run"] == run]

    def same_task(self, task: str, but: str, limit: int = 100) -> list[dict[str, Any]]:
        """Episodes of a task other than the episode with key `but`."""
        rows = self.index.reader().execute(
            f"SELECT {_SHOWN}, e.cell FROM episodes e WHERE e.task = ? AND e.key != ? ORDER BY e.id LIMIT ?",
            (task, but, limit),
        )
        return [_row(r, self._by_id()) for r in rows]

    def _by_id(self) -> dict[int, dict[str, Any]]:
        return {c["id"]: c for c in self.cells()}


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    values: list[Any] = []
    if query.text:
        where.append("e.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(match(query.text) or '""')
    for name, (low, high) in query.ranges.items():
        for sign, value in ((">=", low), ("<=", high)):
            if value is not None:
                where.append(f"e.{name} {sign} ?")  # name is one of RANGES
                values.append(value)
    return where, values


def _kept(cell: Mapping[str, Any], chosen: Mapping[str, frozenset[str]], but: str = "") -> bool:
    return all(cell[name] in values for name, values in chosen.items() if name != but)


def _facet(
    cells: Sequence[Mapping[str, Any]], counts: Mapping[int, int], chosen: Mapping[str, frozenset[str]], name: str
) -> list[list[Any]]:
    found: dict[str, int] = dict.fromkeys(chosen.get(name, ()), 0)  # what is chosen stays visible, be it at 0
    for c in cells:
        n = counts.get(c["id"], 0)
        if n and _kept(c, chosen, but=name):
            found[c[name]] = found.get(c[name], 0) + n
    return sorted(([k, v] for k, v in found.items()), key=lambda kv: (-kv[1], kv[0]))


def _row(row: sqlite3.Row, cells: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    own = {k: row[k] for k in row.keys() if k in _NAMES}  # noqa: SIM118 - a Row iterates over its values
    cell = cells.get(row["cell"], {})
    return own | {name: cell.get(name, "") for name in CELL}


_NAMES = frozenset(n.strip().removeprefix("e.") for n in _SHOWN.split(","))
