"""What a new server makes of what the last one left: machines and leases are taken up, or fenced and ended.

Guarantees: a lease lives on, with its token, only when its machine still answers and no call was running when the old
server died; then its time to live starts anew. Every other lease is fenced: its token is never valid again and its
machine is replaced or cleaned before anybody gets it. Machines of ours that no lease or slot needs are ended.
After a restart of this computer the same rules hold, since the machine itself is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from guiderail.envs.types import Env
from guiderail.pool.calls import Calls
from guiderail.pool.desk import Desk
from guiderail.pool.leases import REMEMBERED, Lease
from guiderail.pool.providers.base import LABEL_POOL, Fenced, Vm
from guiderail.pool.store import LeaseRow, VmRow
from guiderail.pool.sweeper import sweep

log = logging.getLogger("guiderail.pool")
CHECK_TIMEOUT_S = 6.0
FIRST_SWEEP_S = 30.0
FENCED = "was fenced: the server ended and {}"


async def recover(pool: Desk) -> None:
    """Take up, fence and end. Called once, before anything is lent. Raises what `provider.list` raises."""
    store, rows = pool.store, {r.name: r for r in pool.store.live_vms()}
    leases: dict[str, LeaseRow] = {}
    for lease in store.live_leases():
        if lease.vm in leases:  # its end could not be written; the machine was cleaned and lent anew
            _fence(pool, leases[lease.vm].id, FENCED.format("its machine was lent anew"))
        leases[lease.vm] = lease
    for lease_id, why in store.ended_leases(REMEMBERED):
        pool.table.remember(lease_id, why)
    listed = await pool.provider.list({LABEL_POOL: pool.config.name}) if pool.provider.durable else []
    there = {vm.name: vm for vm in listed}
    checked = await asyncio.gather(*(_reach(pool, there[n]) for n in rows if n in there))
    screens = {n: env for n, env in zip((n for n in rows if n in there), checked, strict=True) if env is not None}
    # leases first: slots may have become fewer
    order = sorted((n for n in screens if rows[n].state != "creating"), key=lambda n: (n not in leases, rows[n].slot))
    for index, name in enumerate(order[: pool.config.slots]):
        pool.machines.names.add(name)
        _adopt(pool, index, there[name], screens.pop(name), rows[name], leases.pop(name, None))
    for lease in leases.values():
        gone = lease.vm not in there
        _fence(pool, lease.id, FENCED.format("its machine is gone" if gone else "its machine does not answer"))
    for env in screens.values():
        await env.close()
    for name in rows.keys() - there.keys():
        store.vm_ended(name, "gone when the next server looked")
    # the rest carries our label and is no slot's: the sweeper's first round, before anything is lent
    if listed:
        with contextlib.suppress(TimeoutError):  # the rest is found again while the pool runs
            async with asyncio.timeout(FIRST_SWEEP_S):
                pool.counts["swept"] += await sweep(pool.provider, pool.config.name, pool.machines.names, store)


def _fence(pool: Desk, lease_id: str, why: str) -> None:
    """End a lease of the last server."""
    pool.counts["fenced"] += 1
    pool.store.lease_ended(lease_id, why)
    pool.table.remember(lease_id, why)


async def _reach(pool: Desk, vm: Vm) -> Env | None:
    """A connection to a machine that answers, else None."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await pool.provider.connect(vm) if await pool.provider.ready(vm) else None
    except Exception as e:
        log.warning("machine %s cannot be taken up (%s: %s)", vm.name, type(e).__name__, e)
        return None


def _adopt(pool: Desk, index: int, vm: Vm, env: Env, row: VmRow, lease: LeaseRow | None) -> None:
    """Put a machine into a slot, with its lease if that may go on."""
    pool.machines.adopt(index, vm, env, row.expires)
    pool.store.vm_slot(vm.name, index)
    if lease is None:
        if row.state == "clean":
            pool.table.up(index)
        else:
            pool.machines.clean(index)
        return
    book = Calls(lease.id, pool.store, started=lease.started, over=lease.over, task=lease.task)
    for request, digest, reply, done in pool.store.calls_of(lease.id):
        book.seen[request] = digest
        if reply is not None:
            book.replies[request] = reply
        if not done:
            why = FENCED.format("a call was running: whether it acted is not known")
            _fence(pool, lease.id, why)
            return pool.machines.rebuild(index, why)
    now = time.monotonic()
    taken = Lease(lease.id, lease.token, index, lease.holder, lease.ttl, now + lease.ttl, now)
    pool.table.restore(taken)
    pool.calls[lease.id] = book
    pool.queue.restore(lease.request, taken)
    if isinstance(env, Fenced):
        env.fence = lease.token
    pool.counts["recovered"] += 1
