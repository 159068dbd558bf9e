"""What machines cost, read from the pool's state file.

A machine costs from the moment it was asked for until the provider confirmed its end: never less than the bill, as far
as the price is right. A lease's share is the time it held its machine.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any

COST = "price * max(0, coalesce(ended, :now) - asked) / 3600"


def spent(db: sqlite3.Connection, now: float | None = None) -> float:
    """Cost of all machines up to now, running ones included."""
    (total,) = db.execute(f"SELECT coalesce(sum({COST}), 0) FROM vms", {"now": now or time.time()}).fetchone()
    return float(total)


def machines(db: sqlite3.Connection, now: float | None = None) -> list[dict[str, Any]]:
    """One row per machine ever asked for, oldest first: boot_s (None = never ready), hours, price, cost, owner, why."""
    rows = db.execute(
        f"SELECT name, id, provider, owner, slot, state, price, currency, asked, ready - asked AS boot_s, ended, why,"
        f" max(0, coalesce(ended, :now) - asked) / 3600 AS hours, {COST} AS cost FROM vms ORDER BY asked, name",
        {"now": now or time.time()},
    )
    names = [c[0] for c in rows.description]
    return [dict(zip(names, r, strict=True)) for r in rows]


def totals(db: sqlite3.Connection, now: float | None = None) -> dict[str, Any]:
    """machines, failed_boots, running, hours, cost, currency, by_owner, and by_holder (the 100 that held longest)."""
    rows = machines(db, now)
    by_owner: dict[str, float] = {}
    for r in rows:
        by_owner[r["owner"]] = by_owner.get(r["owner"], 0.0) + r["cost"]
    held = db.execute(
        "SELECT holder, count(*), sum(max(0, coalesce(leases.ended, :now) - granted)) / 3600,"
        " sum(vms.price * max(0, coalesce(leases.ended, :now) - granted)) / 3600"
        " FROM leases JOIN vms ON vms.name = leases.vm GROUP BY holder ORDER BY 3 DESC LIMIT 100",
        {"now": now or time.time()},
    )
    return {
        "machines": len(rows),
        "failed_boots": sum(r["boot_s"] is None and r["ended"] is not None for r in rows),
        "running": sum(r["ended"] is None for r in rows),
        "hours": sum(r["hours"] for r in rows),
        "cost": sum(r["cost"] for r in rows),
        "currency": next((r["currency"] for r in rows if r["currency"]), ""),
        "by_owner": by_owner,
        "by_holder": {r[0]: {"leases": r[1], "hours": r[2], "cost": r[3]} for r in held},
    }
