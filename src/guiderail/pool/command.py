"""`guiderail pool list | sweep | costs`: what carries our label, what nobody answers for, what it cost.

Guarantees: `list` changes nothing; `sweep` ends exactly what `list` calls orphan or expired, after it said so and was
told `--yes`; while a server lives on the state file, its machines are its own business and are called kept. A machine
whose server died is kept as long as it carries a lease that a new server would take up.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guiderail.errors import InputError
from guiderail.pool import ledger
from guiderail.pool.options import pool_name, provider_of
from guiderail.pool.providers.base import LABEL_EXPIRES, LABEL_OWNER, LABEL_POOL, Provider, Vm

SKEW_S = 120.0  # clocks of pool and finder may differ so much


@dataclass(frozen=True)
class Found:
    """A machine and what is to be done with it: kept, orphan or expired."""

    vm: Vm
    verdict: str
    why: str


def judge(vm: Vm, pool: str, state: State, now: float) -> Found:
    """What a machine is."""
    if vm.labels.get(LABEL_POOL) == pool and state.server_lives:
        return Found(vm, "kept", "its server lives")  # whatever this computer's clock says
    expires = float(vm.labels.get(LABEL_EXPIRES, "inf"))
    if now > expires + SKEW_S:
        return Found(vm, "expired", f"its hard limit was {time.strftime('%F %T', time.localtime(expires))}")
    if vm.labels.get(LABEL_POOL) != pool:
        return Found(vm, "kept", "another pool's")
    if vm.name in state.leased:
        return Found(vm, "kept", f"lease of {state.leased[vm.name]}; a new server would take it up")
    return Found(vm, "orphan", "no live lease and no server")


@dataclass
class State:
    """What the state file says: whether its server lives, machine -> holder of its live lease."""

    server_lives: bool
    leased: dict[str, str]


def read_state(path: str) -> State:
    """Read a state file beside its server. Raises InputError."""
    if not path:
        return State(False, {})
    db = connect(path)
    rows = db.execute("SELECT vm, holder, granted, ttl FROM leases WHERE ended IS NULL").fetchall()
    wrote = max((f.stat().st_mtime for f in (Path(path), Path(f"{path}-wal")) if f.exists()), default=0.0)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lives = False
    except BlockingIOError:
        lives = True
    finally:
        os.close(lock)
    # a dead server's leases end ttl after its last sign of life
    live = {vm: holder for vm, holder, granted, ttl in rows if time.time() < max(granted, wrote) + ttl + SKEW_S}
    return State(lives, live)


def connect(path: str) -> sqlite3.Connection:
    """The state file, read only. Raises InputError."""
    if not Path(path).exists():
        raise InputError(f"there is no state file {path}")
    return sqlite3.connect(f"file:{Path(path).resolve()}?mode=ro", uri=True)


async def look(provider: Provider, pool: str, state: State, all_pools: bool) -> list[Found]:
    """All our machines, judged."""
    await provider.start()
    found = await provider.list({} if all_pools else {LABEL_POOL: pool})
    now = time.time()
    return [judge(vm, pool, state, now) for vm in found if LABEL_POOL in vm.labels]


def row(found: Found) -> dict[str, Any]:
    """One line of the table."""
    vm, hours = found.vm, max(0.0, time.time() - found.vm.created) / 3600
    return {
        "machine": vm.name,
        "id": vm.id,
        "pool": vm.labels.get(LABEL_POOL, ""),
        "owner": vm.labels.get(LABEL_OWNER, ""),
        "state": vm.state,
        "hours": round(hours, 3),
        "cost": round(hours * vm.price_per_hour, 4),
        "verdict": found.verdict,
        "why": found.why,
    }


def run(a: argparse.Namespace) -> None:
    """The command. Raises InputError, ProviderError; SystemExit 1 when a machine could not be ended."""
    if a.do == "costs":
        if not a.state:
            raise InputError("costs are in the state file: give --state FILE")
        db = connect(a.state)
        machines, totals = ledger.machines(db), ledger.totals(db)
        show(a.json, [{k: m[k] for k in COLUMNS} for m in machines], {k: v for k, v in totals.items()})
        return
    provider, pool = provider_of(a), pool_name(a.name, a.state)
    if not provider.durable:
        print(f"machines of {provider.name} die with their server: there is nothing to {a.do}")
        return
    asyncio.run(_run(a, provider, pool))


COLUMNS = ("name", "owner", "boot_s", "hours", "price", "cost", "currency", "ended", "why")


async def _run(a: argparse.Namespace, provider: Provider, pool: str) -> None:
    found = await look(provider, pool, read_state(a.state), a.all_pools)
    show(a.json, [row(f) for f in found], {"pool": pool, "machines": len(found)})
    doomed = [f for f in found if f.verdict != "kept"] if a.do == "sweep" else []
    left = 0
    for f in doomed if a.yes else []:
        try:
            await provider.terminate(f.vm.id)
            print(f"ended {f.vm.name}")
        except Exception as e:
            left += 1
            print(f"could not end {f.vm.name}: {type(e).__name__}: {e}")
    await provider.stop()
    if doomed and not a.yes:
        print(f"{len(doomed)} would be ended; say --yes to do it")
    if left:
        raise SystemExit(1)


def show(as_json: bool, rows: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    """A table and totals, or JSON."""
    if as_json:
        print(json.dumps({"rows": rows, "totals": totals}, indent=1))
        return
    if rows:
        cells = [list(rows[0]), *([_cell(v) for v in r.values()] for r in rows)]
        widths = [max(len(c[i]) for c in cells) for i in range(len(cells[0]))]
        for line in cells:
            print("  ".join(v.ljust(w) for v, w in zip(line, widths, strict=True)).rstrip())
    print("  ".join(f"{k} {_cell(v)}" for k, v in totals.items() if not isinstance(v, dict)))


def _cell(v: Any) -> str:
    return "-" if v is None else f"{v:.4g}" if isinstance(v, float) and v < 1e8 else str(v)
