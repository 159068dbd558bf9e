"""Questions to the index: a page of episodes with the counts of every filter, a group, the same task elsewhere.

Guarantees: every value goes to SQLite as a parameter, never as text of the statement; unknown filters and sort orders
are refused by name (BadQuery); the counts of a filter's values are what choosing that value would give, the other
filters kept. Full text: every word must occur, as the beginning of a word; punctuation only separates.
"""

from __future__ import annotations

import itertools
import math
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guiderail.report.viewer.index import SORTS, Index
from guiderail.report.viewer.reading import CELL

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
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


class Cells:
    """The cells of one state of the index as columns of codes, so that counting by category is a few vector sums."""

    def __init__(self, rows: Sequence[sqlite3.Row]) -> None:
        self.rows: list[dict[str, Any]] = [dict(r) for r in rows]
        self.ids = np.array([r["id"] for r in self.rows], dtype=np.int64)
        self.sizes = np.array([r["n"] for r in self.rows], dtype=np.int64)
        self.by_id = {r["id"]: r for r in self.rows}
        self.values: dict[str, list[str]] = {}
        self.codes: dict[str, IntArray] = {}
        for name in CELL:
            self.values[name] = sorted({r[name] for r in self.rows})
            code = {v: i for i, v in enumerate(self.values[name])}
            self.codes[name] = np.array([code[r[name]] for r in self.rows], dtype=np.int64)

    def places(self, ids: IntArray) -> IntArray:
        """Row of each cell id, int64; ids must be known."""
        order = np.argsort(self.ids)
        found: IntArray = order[np.searchsorted(self.ids, ids, sorter=order)]
        return found

    def kept(self, chosen: Mapping[str, frozenset[str]], but: str = "") -> BoolArray:
        """Which cells are among the chosen values, category `but` left aside."""
        keep = np.ones(len(self.rows), dtype=np.bool_)
        for name, values in chosen.items():
            if name != but:
                codes = [i for i, v in enumerate(self.values[name]) if v in values]
                keep &= np.isin(self.codes[name], codes)
        return keep

    def facet(self, counts: IntArray, chosen: Mapping[str, frozenset[str]], name: str) -> list[list[Any]]:
        """[value, count] of a category, most frequent first; what is chosen is there even at 0."""
        n = np.bincount(self.codes[name], counts * self.kept(chosen, but=name), len(self.values[name])).astype(int)
        found = {v: int(k) for v, k in zip(self.values[name], n, strict=True) if k}
        found = dict.fromkeys(chosen.get(name, ()), 0) | found
        return sorted(([k, v] for k, v in found.items()), key=lambda kv: (-kv[1], kv[0]))


class Explorer:
    """Answers over one index. Counts and matches of a text are remembered until the index changes."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._memory: OrderedDict[Any, Any] = OrderedDict()
        self._seen = -1

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """make(), remembered while the index stays as it is; the last 16 of them."""
        now = self.index.changes()
        if now != self._seen:
            self._memory, self._seen = OrderedDict(), now
        memory = self._memory
        if key not in memory:
            memory[key] = make()
            while len(memory) > 16:
                memory.popitem(last=False)
        memory.move_to_end(key)
        return memory[key]

    def cells(self) -> Cells:
        """All cells of the index as it is."""
        made: Cells = self._once(
            "cells", lambda: Cells(self.index.reader().execute("SELECT * FROM cells WHERE n > 0").fetchall())
        )
        return made

    def _pairs(self, sql: str, values: Sequence[Any] = ()) -> IntArray:
        """Two integer columns of a statement, int64 [n, 2]."""
        cursor = self.index.reader().cursor()
        cursor.row_factory = None  # plain tuples: rows that know their names cost ten times as much here
        flat = itertools.chain.from_iterable(cursor.execute(sql, values))
        return np.fromiter(flat, dtype=np.int64).reshape(-1, 2)

    def warm(self) -> None:
        """Do now what the first question after a change would wait for."""
        self.cells()
        self._cell_of()

    def _cell_of(self) -> IntArray:
        """Row of the cell of every episode, by episode id (-1: no such id)."""

        def make() -> IntArray:
            pairs = self._pairs("SELECT id, cell FROM episodes")
            found = np.full(int(pairs[:, 0].max()) + 1 if len(pairs) else 1, -1, dtype=np.int64)
            if len(pairs):
                found[pairs[:, 0]] = self.cells().places(pairs[:, 1])
            return found

        made: IntArray = self._once("cell of", make)
        return made

    def _matches(self, text: str) -> IntArray:
        """Ids of the episodes that match a text, ascending."""

        def make() -> IntArray:
            sql = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid"
            return self._pairs(f"SELECT m.rowid, 0 FROM ({sql}) m", (match(text) or '""',))[:, 0]

        made: IntArray = self._once(("text", text), make)
        return made

    def _counts(self, query: Query) -> IntArray:
        """Episodes per cell under the text and the ranges of `query`, its categories left aside."""
        cells = self.cells()
        if not query.text and not query.ranges:
            return cells.sizes
        if not query.ranges:
            found = self._cell_of()
            ids = self._matches(query.text)
            return np.bincount(found[ids[ids < len(found)]], minlength=len(cells.rows)).astype(np.int64)

        def make() -> IntArray:
            where, values = _conditions(query)
            sql = f"SELECT e.cell, count(*) FROM episodes e WHERE {' AND '.join(where)} GROUP BY e.cell"
            counts = np.zeros(len(cells.rows), dtype=np.int64)
            pairs = self._pairs(sql, values)
            if len(pairs):
                counts[cells.places(pairs[:, 0])] = pairs[:, 1]
            return counts

        made: IntArray = self._once((query.text, tuple(sorted(query.ranges.items()))), make)
        return made

    def page(self, query: Query) -> dict[str, Any]:
        """{total, all, page, pages, episodes: rows, facets: {category: [[value, count], ...]}}."""
        cells, counts = self.cells(), self._counts(query)
        wanted = cells.kept(query.chosen) & (counts > 0)
        total = int(counts[wanted].sum())
        pages = max(1, -(-total // query.size))
        number = min(query.page, pages)
        rows = self._rows(query, wanted, total, (number - 1) * query.size) if total else []
        return {
            "total": total, "all": int(cells.sizes.sum()), "page": number, "pages": pages,
            "facets": {name: cells.facet(counts, query.chosen, name) for name in CELL},
            "episodes": [_row(r, cells.by_id) for r in rows], "changes": self.index.changes(),
            "judged": self._any("disagreement"), "trained": self._any("advantage"),
        }  # fmt: skip

    def _any(self, column: str) -> bool:
        sql = f"SELECT 1 FROM episodes WHERE {column} IS NOT NULL LIMIT 1"
        return self.index.reader().execute(sql).fetchone() is not None

    def _rows(self, query: Query, wanted: BoolArray, total: int, offset: int) -> list[sqlite3.Row]:
        if query.text and not query.ranges and query.sort == "id":  # the order of the matches is known already
            found, ids = self._cell_of(), self._matches(query.text)
            ids = ids[wanted[found[ids]]]
            ids = (ids[::-1] if query.down else ids)[offset : offset + query.size]
            sql = f"SELECT {_SHOWN}, e.cell FROM episodes e WHERE e.id IN ({','.join(map(str, ids))})"
            rows = {r["id"]: r for r in self.index.reader().execute(sql)}
            return [rows[i] for i in ids.tolist() if i in rows]
        where, values = _conditions(query)
        cells = self.cells()
        if not wanted[cells.sizes > 0].all():
            where.append(f"e.cell IN ({','.join(map(str, cells.ids[wanted]))})")  # our own integers
        direction = "DESC" if query.down else "ASC"
        # a unary plus keeps SQLite from walking the sort's index through all that does not match
        plus = "+" if total <= FEW and where else ""
        order = "" if query.sort == "id" else f"{plus}e.{query.sort} {direction} NULLS LAST, "
        sql = (
            f"SELECT {_SHOWN}, e.cell FROM episodes e {'WHERE ' + ' AND '.join(where) if where else ''} "
            f"ORDER BY {order}{plus}e.id {direction} LIMIT ? OFFSET ?"
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
                return _row(found, self.cells().by_id) | {
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
        return [r for r in (_row(r, self.cells().by_id) for r in rows) if r["run"] == run]

    def same_task(self, task: str, but: str, limit: int = 100) -> list[dict[str, Any]]:
        """Episodes of a task other than the episode with key `but`."""
        rows = self.index.reader().execute(
            f"SELECT {_SHOWN}, e.cell FROM episodes e WHERE e.task = ? AND e.key != ? ORDER BY e.id LIMIT ?",
            (task, but, limit),
        )
        return [_row(r, self.cells().by_id) for r in rows]


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


def _row(row: sqlite3.Row, cells: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    own = {k: row[k] for k in row.keys() if k in _NAMES}  # noqa: SIM118 - a Row iterates over its values
    cell = cells.get(row["cell"], {})
    return own | {name: cell.get(name, "") for name in CELL}


_NAMES = frozenset(n.strip().removeprefix("e.") for n in _SHOWN.split(","))
