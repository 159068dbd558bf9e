"""What the pool must not forget: machines, leases, calls, costs. One SQLite file in WAL mode, one writer.

Guarantees: what a method wrote is there after this process was killed at any later moment (after a power cut the last
moments may be missing: then the machine that carried a lease answers for the lease, see `recovery`); a second server on
the same file is refused while the first lives; fencing tokens rise over restarts. All writes are single short
transactions (20 to 60 microseconds), made on the event loop. Times are unix seconds.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from guiderail.errors import Explained
from guiderail.pool.wire import Reply

MEMORY = ":memory:"
KEPT_BODY = 1 << 18  # a longer reply is not kept over a restart
LOCK_TRIES, LOCK_PAUSE_S = 10, 0.1
SCHEMA = """
CREATE TABLE IF NOT EXISTS vms (
  name TEXT PRIMARY KEY, id TEXT NOT NULL DEFAULT '', provider TEXT NOT NULL, owner TEXT NOT NULL,
  slot INTEGER NOT NULL, state TEXT NOT NULL, price REAL NOT NULL, currency TEXT NOT NULL,
  asked REAL NOT NULL, ready REAL, ended REAL, expires REAL NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS vms_live ON vms (ended) WHERE ended IS NULL;
CREATE TABLE IF NOT EXISTS leases (
  id TEXT PRIMARY KEY, token INTEGER NOT NULL, vm TEXT NOT NULL, holder TEXT NOT NULL, ttl REAL NOT NULL,
  request TEXT NOT NULL, granted REAL NOT NULL, started INTEGER NOT NULL DEFAULT 0, over INTEGER NOT NULL DEFAULT 0,
  ended REAL, why TEXT NOT NULL DEFAULT '', task TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS leases_live ON leases (ended) WHERE ended IS NULL;
CREATE TABLE IF NOT EXISTS calls (
  lease TEXT NOT NULL, request TEXT NOT NULL, digest INTEGER NOT NULL, status INTEGER NOT NULL DEFAULT 0,
  type TEXT NOT NULL DEFAULT '', body BLOB, PRIMARY KEY (lease, request)) WITHOUT ROWID;
"""


class StoreTaken(Explained, RuntimeError):
    """Another pool server lives on the same state file."""


@dataclass(frozen=True)
class VmRow:
    """A machine that has not ended. `state`: creating, clean or dirty."""

    name: str
    id: str
    slot: int
    state: str
    expires: float


@dataclass(frozen=True)
class LeaseRow:
    """A lease that has not ended."""

    id: str
    token: int
    vm: str
    holder: str
    ttl: float
    request: str
    started: bool
    over: bool
    task: str


class Store:
    """The file at `path`; ":memory:" forgets at the end of the process."""

    def __init__(self, path: str = MEMORY) -> None:
        self.path = path
        self.lock = -1
        if path != MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _locked(self.lock):
                os.close(self.lock)
                raise StoreTaken(
                    f"another pool server works with the state in {path}; end it first, or give this one "
                    "another --state and another --name"
                )
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {SCHEMA}")
        if "task" not in [c[1] for c in self.db.execute("PRAGMA table_info(leases)")]:  # a file of an earlier version
            self.db.execute("ALTER TABLE leases ADD COLUMN task TEXT NOT NULL DEFAULT ''")
        (last,) = self.db.execute("SELECT coalesce(max(token), 0) FROM leases").fetchone()
        self.last_token = int(last)

    def close(self) -> None:
        """Close the file and let another server have it. Idempotent."""
        self.db.close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    # -- machines -----------------------------------------------------------------------------------------------------
    def vm_asked(
        self, name: str, provider: str, owner: str, slot: int, price: float, currency: str, expires: float
    ) -> None:
        """A machine is about to be created."""
        self.db.execute(
            "INSERT INTO vms (name, provider, owner, slot, state, price, currency, asked, expires)"
            " VALUES (?,?,?,?,'creating',?,?,?,?)",
            (name, provider, owner, slot, price, currency, time.time(), expires),
        )

    def vm_made(self, name: str, vm_id: str, price: float) -> None:
        """It exists (or has been made anew) under this id."""
        self.db.execute("UPDATE vms SET id=?, price=? WHERE name=?", (vm_id, price, name))

    def vm_state(self, name: str, state: str) -> None:
        """It is clean (nobody has used it) or dirty. The first time it is clean is when it was ready."""
        self.db.execute("UPDATE vms SET state=?, ready=coalesce(ready, ?) WHERE name=?", (state, time.time(), name))

    def vm_slot(self, name: str, slot: int) -> None:
        """It has moved to another slot."""
        self.db.execute("UPDATE vms SET slot=? WHERE name=?", (slot, name))

    def vm_ended(self, name: str, why: str) -> None:
        """The provider has ended it, or it is not there any more. The first end counts."""
        self.db.execute("UPDATE vms SET ended=?, why=? WHERE name=? AND ended IS NULL", (time.time(), why[:500], name))

    def vm_found(self, name: str, vm_id: str, provider: str, price: float, currency: str, created: float) -> None:
        """A machine with our label; if nobody wrote it down, it counts from when the provider says it was made."""
        self.db.execute(
            "INSERT INTO vms (name, id, provider, owner, slot, state, price, currency, asked)"
            " VALUES (?,?,?,'',-1,'dirty',?,?,?) ON CONFLICT DO NOTHING",
            (name, vm_id, provider, price, currency, created or time.time()),
        )

    def vms_missing(self, there: Collection[str], ours: Collection[str]) -> None:
        """Machines that have not ended by our book, are nobody's now, and are not there: they are over."""
        for row in self.live_vms():
            if row.name not in there and row.name not in ours:
                self.vm_ended(row.name, "gone when the sweeper looked")

    def live_vms(self) -> list[VmRow]:
        """Machines not known to have ended."""
        rows = self.db.execute("SELECT name, id, slot, state, expires FROM vms WHERE ended IS NULL ORDER BY slot")
        return [VmRow(*r) for r in rows]

    # -- leases -------------------------------------------------------------------------------------------------------
    def lease_granted(self, lease_id: str, token: int, vm: str, holder: str, ttl: float, request: str) -> None:
        """A lease on machine `vm`, which is dirty from now on."""
        with self.db:
            self.db.execute("BEGIN")
            self.db.execute(
                "INSERT INTO leases (id, token, vm, holder, ttl, request, granted) VALUES (?,?,?,?,?,?,?)",
                (lease_id, token, vm, holder, ttl, request, time.time()),
            )
            self.db.execute("UPDATE vms SET state='dirty' WHERE name=?", (vm,))

    def lease_ended(self, lease_id: str, why: str) -> None:
        """It is over; its calls are forgotten."""
        with self.db:
            self.db.execute("BEGIN")
            self.db.execute(
                "UPDATE leases SET ended=?, why=? WHERE id=? AND ended IS NULL", (time.time(), why[:500], lease_id)
            )
            self.db.execute("DELETE FROM calls WHERE lease=?", (lease_id,))

    def live_leases(self) -> list[LeaseRow]:
        """Leases not known to have ended, oldest first."""
        rows = self.db.execute(
            "SELECT id, token, vm, holder, ttl, request, started, over, task FROM leases WHERE ended IS NULL"
            " ORDER BY token"
        )
        return [LeaseRow(r[0], r[1], r[2], r[3], r[4], r[5], bool(r[6]), bool(r[7]), r[8]) for r in rows]

    def ended_leases(self, limit: int) -> list[tuple[str, str]]:
        """(id, why) of the last leases that ended, oldest first."""
        rows = self.db.execute(
            "SELECT id, why FROM leases WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT ?", (limit,)
        ).fetchall()
        return [(r[0], r[1]) for r in reversed(rows)]

    # -- calls --------------------------------------------------------------------------------------------------------
    def call_begun(self, lease_id: str, request: str, digest: int) -> None:
        """A call is about to act."""
        self.db.execute("INSERT INTO calls (lease, request, digest) VALUES (?,?,?)", (lease_id, request, digest))

    def call_done(self, lease_id: str, request: str, reply: Reply, started: bool, over: bool, task: str = "") -> None:
        """It has acted; its reply is kept until the next call of the lease is done."""
        body = reply.body if len(reply.body) <= KEPT_BODY else None
        with self.db:
            self.db.execute("BEGIN")
            self.db.execute("UPDATE calls SET body=NULL WHERE lease=? AND body IS NOT NULL", (lease_id,))
            self.db.execute(
                "UPDATE calls SET status=?, type=?, body=? WHERE lease=? AND request=?",
                (reply.status, reply.type, body, lease_id, request),
            )
            self.db.execute("UPDATE leases SET started=?, over=?, task=? WHERE id=?", (started, over, task, lease_id))

    def calls_of(self, lease_id: str) -> list[tuple[str, int, Reply | None, bool]]:
        """(request, digest, reply if kept, whether it was done) of every call."""
        rows = self.db.execute("SELECT request, digest, status, type, body FROM calls WHERE lease=?", (lease_id,))
        return [(r[0], r[1], Reply(r[2], r[4], r[3]) if r[4] is not None else None, r[2] != 0) for r in rows]


def _locked(fd: int) -> bool:
    """Take the lock; `guiderail pool` holds it for an instant when it looks whether a server does."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
    return False
