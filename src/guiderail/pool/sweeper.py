"""Ends machines that carry our label and that nobody answers for.

Guarantees: a machine that is ours and known is never touched (its name is known before it is asked for, so it cannot
be seen too early); what cannot be ended now is met again at the next sweep; whatever is found costs in the ledger, also
when no server ever wrote it down. A state file that takes nothing keeps no orphan alive.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Collection

from guiderail.pool.providers.base import LABEL_POOL, Provider, Vm
from guiderail.pool.store import Store

log = logging.getLogger("guiderail.pool")


async def sweep(provider: Provider, pool: str, known: Collection[str], store: Store) -> int:
    """End every machine of `pool` that is not in `known` (looked at late: it may grow meanwhile); how many went."""
    try:
        found = await provider.list({LABEL_POOL: pool})
    except Exception as e:
        log.warning("cannot look for orphans (%s: %s); tried again soon", type(e).__name__, e)
        return 0
    lost = [vm for vm in found if vm.name not in known]
    ended = await asyncio.gather(*(end(provider, vm, store, "nobody answered for it") for vm in lost))
    try:
        store.vms_missing({vm.name for vm in found}, known)
    except sqlite3.Error as e:
        log.error("the end of machines cannot be written (%s); tried again soon", e)
    return sum(ended)


async def end(provider: Provider, vm: Vm, store: Store, why: str) -> bool:
    """End one machine and write it down; False when it may still be there."""
    try:
        await provider.terminate(vm.id)
    except Exception as e:
        log.warning("machine %s cannot be ended (%s: %s); tried again soon", vm.name, type(e).__name__, e)
        return False
    log.warning("machine %s was ended: %s", vm.name, why)
    try:
        store.vm_found(vm.name, vm.id, provider.name, vm.price_per_hour, provider.currency, vm.created)
        store.vm_ended(vm.name, why)
    except sqlite3.Error as e:
        log.error("the end of machine %s cannot be written: %s", vm.name, e)
    return True
