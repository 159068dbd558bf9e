"""Answers of the index: a page of episodes with the counts of every filter, a group, the same task elsewhere.

Guarantees: an answer is of one state of the index; what is costly (counts under a text, its matches) is remembered
until the index changes. What may be asked is in `query`, how categories are counted in `cells`.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from guiderail.report.viewer.cells import BoolArray, Cells, IntArray
from guiderail.report.viewer.index import Index
from guiderail.report.viewer.query import Query, conditions, match
from guiderail.report.viewer.reading import CELL

FEW = 4000
"""Matches up to this many are fetched and sorted; more are walked in the order of the sort's index."""
_SHOWN = (
    "e.id, e.key, e.task, e.grp, e.sibling, e.attempt, e.iteration, e.instruction, e.reward, e.steps, e.tokens, "
    "e.seconds, e.unreadable, e.advantage, e.disagreement, e.frame"
)


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
        """Row of the cell of every episode, by episode id (-1: no such id, or not counted yet)."""

        def make() -> IntArray:
            pairs = self._pairs("SELECT id, cell FROM episodes")
            found = np.full(int(pairs[:, 0].max()) + 1 if len(pairs) else 1, -1, dtype=np.int64)
            if len(pairs):
                found[pairs[:, 0]] = self.cells().places(pairs[:, 1])
            return found

        made: IntArray = self._once("cell of", make)
        return made

    def _matches(self, text: str) -> IntArray:
        """Ids of the counted episodes that match a text, ascending."""

        def make() -> IntArray:
            sql = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid"
            ids = self._pairs(f"SELECT m.rowid, 0 FROM ({sql}) m", (match(text) or '""',))[:, 0]
            found = self._cell_of()
            ids = ids[ids < len(found)]
            return ids[found[ids] >= 0]

        made: IntArray = self._once(("text", text), make)
        return made

    def _counts(self, query: Query) -> IntArray:
        """Episodes per cell under the text and the ranges of `query`, its categories left aside."""
        cells = self.cells()
        if not query.text and not query.narrow:
            return cells.sizes
        if not query.narrow:
            return np.bincount(self._cell_of()[self._matches(query.text)], minlength=len(cells.rows)).astype(np.int64)

        def make() -> IntArray:
            where, values = conditions(query)
            sql = f"SELECT e.cell, count(*) FROM episodes e WHERE {' AND '.join(where)} GROUP BY e.cell"
            counts = np.zeros(len(cells.rows), dtype=np.int64)
            pairs = self._pairs(sql, values)
            places = cells.places(pairs[:, 0])
            counts[places[places >= 0]] = pairs[places >= 0, 1]
            return counts

        made: IntArray = self._once((query.text, query.task, tuple(sorted(query.ranges.items()))), make)
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
        if query.text and not query.narrow and query.sort == "id":  # the order of the matches is known already
            found, ids = self._cell_of(), self._matches(query.text)
            ids = ids[wanted[found[ids]]]
            ids = (ids[::-1] if query.down else ids)[offset : offset + query.size]
            sql = f"SELECT {_SHOWN}, e.cell FROM episodes e WHERE e.id IN ({','.join(map(str, ids))})"
            rows = {r["id"]: r for r in self.index.reader().execute(sql)}
            return [rows[i] for i in ids.tolist() if i in rows]
        where, values = conditions(query)
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

    def same_task(
        self, task: str, but: str, group: str | None = None, limit: int = 100
    ) -> tuple[list[dict[str, Any]], int]:
        """Episodes of a task other than the episode with key `but` and those of `group`, evaluated ones first; and how
        many there are."""
        db, cells = self.index.reader(), self.cells()
        where = "FROM episodes e WHERE e.task = ? AND e.key != ? AND (e.grp IS NULL OR e.grp IS NOT ?)"
        rows = db.execute(
            f"SELECT {_SHOWN}, e.cell {where} "
            "ORDER BY (SELECT c.kind != 'evaluation' FROM cells c WHERE c.id = e.cell), e.id LIMIT ?",
            (task, but, group or None, limit),
        )
        found = [_row(r, cells.by_id) for r in rows]
        return found, int(db.execute(f"SELECT count(*) {where}", (task, but, group or None)).fetchone()[0])


def _row(row: sqlite3.Row, cells: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    own = {k: row[k] for k in row.keys() if k in _NAMES}  # noqa: SIM118 - a Row iterates over its values
    cell = cells.get(row["cell"], {})
    return own | {name: cell.get(name, "") for name in CELL}


_NAMES = frozenset(n.strip().removeprefix("e.") for n in _SHOWN.split(","))
