"""The index over all sources: SQLite with full-text search, kept in step with the files.

Guarantees: a source is indexed whole or not at all (one transaction each) and again only when its stamp changed; what
is gone from disk leaves the index; readers never see half a source, and one process refreshes at a time. The index can
be deleted at any time. What cannot be read is listed in `problems` with the reason, and the rest is indexed.

Layout: `cells` holds the distinct combinations of the categorical columns with their counts (thousands at most),
`episodes` one narrow row per episode that points to a cell, `words` the searched text. So counting by category never
touches the episodes.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from guiderail.report.viewer.reading import CELL, read
from guiderail.report.viewer.sources import Source, frame_folders, sources

VERSION = 4
COUNT_S = 3.0
SORTS = ("reward", "steps", "tokens", "seconds", "advantage", "disagreement", "iteration", "task")
_COLUMNS: tuple[str, ...] = (
    "key",
    "number",
    "cell",
    "source",
    "task",
    "grp",
    "sibling",
    "attempt",
    "iteration",
    "instruction",
)
_COLUMNS += ("reward", "steps", "tokens", "seconds", "unreadable", "advantage", "disagreement", "frame")
_SCHEMA = f"""
CREATE TABLE meta(version INTEGER, changes INTEGER);
CREATE TABLE sources(id INTEGER PRIMARY KEY, path TEXT UNIQUE, kind TEXT, run TEXT, recipe TEXT, seed TEXT, root TEXT,
    live INTEGER, stamp TEXT, episodes INTEGER);
CREATE TABLE cells(id INTEGER PRIMARY KEY, {", ".join(f"{c} TEXT NOT NULL" for c in CELL)}, n INTEGER DEFAULT 0,
    UNIQUE({", ".join(CELL)}));
CREATE TABLE episodes(id INTEGER PRIMARY KEY, key TEXT, number INTEGER, cell INTEGER, source INTEGER, task TEXT,
    grp TEXT, sibling INTEGER, attempt INTEGER, iteration INTEGER, instruction TEXT, reward REAL, steps INTEGER,
    tokens INTEGER, seconds REAL, unreadable INTEGER, advantage REAL, disagreement REAL, frame TEXT);
CREATE INDEX by_key ON episodes(key);
CREATE INDEX by_source ON episodes(source);
CREATE INDEX by_cell ON episodes(cell);
CREATE INDEX by_grp ON episodes(grp) WHERE grp IS NOT NULL;
CREATE INDEX by_numbers ON episodes(cell, steps, reward, iteration, disagreement);
{"".join(f"CREATE INDEX sort_{c} ON episodes({c}, id, cell);" for c in SORTS)}
CREATE VIRTUAL TABLE words USING fts5(instruction, actions, tokenize='unicode61 remove_diacritics 2', prefix='3');
INSERT INTO meta VALUES({VERSION}, 0);
"""


class Index:
    """The index of one results folder. `file`: where it lies (made when missing, made anew when of another version)."""

    def __init__(self, results: Path, work: Path | None, file: Path | None = None) -> None:
        self.results, self.work = results.resolve(), work.resolve() if work else None
        self.file = file or _place(self.results, self.work)
        self.problems: dict[str, tuple[str, str]] = {}  # path -> (stamp, why)
        self.frames: list[Path] = []
        self.progress: tuple[int, int] | None = (0, 0)  # files read, of how many; (0, 0): looking; None: all is read
        self._readers = threading.local()
        self._next = 0.0
        self._turn = threading.Lock()
        with FileLock(f"{self.file}.lock"):
            _make(self.file)

    def reader(self) -> sqlite3.Connection:
        """A read-only connection of the calling thread."""
        found: sqlite3.Connection | None = getattr(self._readers, "db", None)
        if found is None:
            found = sqlite3.connect(f"{self.file.as_uri()}?mode=ro", uri=True, timeout=10, check_same_thread=False)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA cache_size=-32000")
            found.execute("PRAGMA mmap_size=134217728")
            self._readers.db = found
        return found

    def changes(self) -> int:
        """A number that grows with every change of the index."""
        return int(self.reader().execute("SELECT changes FROM meta").fetchone()[0])

    def refresh(self, at_most_every_s: float = 0.0) -> int:
        """Bring the index in step with the files; how many sources changed. Does nothing when the last look was less
        than `at_most_every_s` ago, or when another thread or process is at it."""
        if at_most_every_s and (time.monotonic() < self._next or not self._turn.acquire(blocking=False)):
            return 0
        if not at_most_every_s:
            self._turn.acquire()
        try:
            with FileLock(f"{self.file}.lock", timeout=-1 if at_most_every_s == 0.0 else 0):
                changed = self._refresh()
        except Timeout:
            return 0
        finally:
            self._next = time.monotonic() + at_most_every_s
            self._turn.release()
        return changed

    def _refresh(self) -> int:
        db = sqlite3.connect(self.file, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous=OFF")  # it can be made again
            there = {str(s.path): s for s in sources(self.results, self.work)}
            self.frames = frame_folders(self.results, self.work)
            known = dict(db.execute("SELECT path, stamp FROM sources"))
            gone = [p for p in known if p not in there]
            new = [
                s for p, s in there.items() if known.get(p) != s.stamp and self.problems.get(p, ("", ""))[0] != s.stamp
            ]
            self.problems = {p: v for p, v in self.problems.items() if p in there}
            for path in gone:
                with _transaction(db):
                    _forget(db, path)
            counted = time.monotonic()
            for done, source in enumerate(new):
                self.progress = (done, len(new))
                self._put(db, source)
                if time.monotonic() - counted > COUNT_S:  # what is there can be looked at while the rest is read
                    _count(db)
                    counted = time.monotonic()
            if gone or new:
                _count(db)
                db.execute("ANALYZE")
            self.progress = None
            return len(gone) + len(new)
        finally:
            db.close()

    def _put(self, db: sqlite3.Connection, source: Source) -> None:
        try:
            with _transaction(db):
                _forget(db, str(source.path))
                cursor = db.execute(
                    "INSERT INTO sources(path, kind, run, recipe, seed, root, live, stamp, episodes) "
                    "VALUES(?,?,?,?,?,?,?,?,0)",
                    (str(source.path), source.kind, source.run, source.recipe, source.seed, str(source.root),
                     source.live, source.stamp),
                )  # fmt: skip
                _insert(db, source, int(cursor.lastrowid or 0))
        except (OSError, ValueError, KeyError, TypeError) as e:  # not ours to mend: say so, show the rest
            self.problems[str(source.path)] = (source.stamp, f"{type(e).__name__}: {e}")
        else:
            self.problems.pop(str(source.path), None)


def _insert(db: sqlite3.Connection, source: Source, number: int) -> None:
    cells: dict[tuple[str, ...], int] = {}
    marks, names = ",".join("?" * len(CELL)), ",".join(CELL)
    first = next_id = int(db.execute("SELECT coalesce(max(id), 0) + 1 FROM episodes").fetchone()[0])
    rows, words = [], []
    for r in read(source):
        if r.cell not in cells:
            db.execute(f"INSERT OR IGNORE INTO cells({names}) VALUES({marks})", r.cell)
            where = " AND ".join(f"{c} = ?" for c in CELL)
            cells[r.cell] = db.execute(f"SELECT id FROM cells WHERE {where}", r.cell).fetchone()[0]
        rows.append(
            (next_id, r.key, r.number, cells[r.cell], number, r.task, r.group, r.sibling, r.attempt, r.iteration,
             r.instruction, r.reward, r.steps, r.tokens, r.seconds, r.unreadable, r.advantage, r.disagreement, r.frame)
        )  # fmt: skip
        words.append((next_id, r.instruction, r.words))
        next_id += 1
    db.executemany(f"INSERT INTO episodes(id,{','.join(_COLUMNS)}) VALUES({','.join('?' * 19)})", rows)
    db.executemany("INSERT INTO words(rowid, instruction, actions) VALUES(?,?,?)", words)
    db.execute("UPDATE sources SET episodes = ? WHERE id = ?", (next_id - first, number))


def _count(db: sqlite3.Connection) -> None:
    """Bring the counts of the cells in step and tell readers that something changed."""
    with _transaction(db):
        db.execute("UPDATE cells SET n = 0")
        db.execute(
            "UPDATE cells SET n = c.n FROM (SELECT cell, count(*) n FROM episodes GROUP BY cell) c "
            "WHERE cells.id = c.cell"
        )
        db.execute("DELETE FROM cells WHERE n = 0")
        db.execute("UPDATE meta SET changes = changes + 1")


def _forget(db: sqlite3.Connection, path: str) -> None:
    found = db.execute("SELECT id FROM sources WHERE path = ?", (path,)).fetchone()
    if found:
        db.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM episodes WHERE source = ?)", found)
        db.execute("DELETE FROM episodes WHERE source = ?", found)
        db.execute("DELETE FROM sources WHERE id = ?", found)


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _place(results: Path, work: Path | None) -> Path:
    """In the attempt folder, one per results folder; in a temporary folder where that cannot be written."""
    name = f"index-{hashlib.sha256(str(results).encode()).hexdigest()[:12]}.sqlite"
    for folder in ([work / "viewer"] if work else []) + [Path(tempfile.gettempdir()) / "guiderail-viewer"]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".writable").touch()
            return (folder / name).resolve()
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="guiderail-viewer-")) / name


def _make(file: Path) -> None:
    if file.exists():
        try:
            with contextlib.closing(sqlite3.connect(file)) as db:
                if db.execute("SELECT version FROM meta").fetchone()[0] == VERSION:
                    return
        except sqlite3.DatabaseError:
            pass  # half made or not ours: made anew
        for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
            name.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(_SCHEMA)
