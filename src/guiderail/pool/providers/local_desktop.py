"""Desktops on this computer, one sandbox each: no cloud, no KVM, no docker, no root.

Guarantees what `local` does; a slot's server, X server and programs are processes under a guard that ends them with
this process, whatever becomes of it. A slot whose server, X server or sandbox died is not `ready`. Where programs
cannot be walled in, `start` says so in the log and the machines say `sandboxed: false`.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

from guiderail.envs.desktop import DesktopEnv
from guiderail.envs.desktop_tasks import Book, find
from guiderail.envs.machine import Machine
from guiderail.envs.types import Env
from guiderail.pool.providers.base import Misconfigured
from guiderail.pool.providers.local import LocalProvider
from guiderail.pool.vm import sandbox
from guiderail.pool.vm.launch import RunningSlot, start_slot
from guiderail.pool.vm.packages import missing
from guiderail.pool.vm.sandbox import Limits
from guiderail.pool.vm.settle import Rule
from guiderail.pool.vm.slot import WHY_NO_WALLS

log = logging.getLogger("guiderail.pool.local_desktop")
OWN_LIMIT = 0.9  # a desktop gives up a little before the pool does, since it can say why


class LocalDesktopProvider(LocalProvider):
    """Desktops of `size` pixels; `book` says what their tasks are; actions are written down in folder `journal`."""

    name = "local_desktop"

    def __init__(
        self,
        *,
        size: tuple[int, int] = (1280, 720),
        limits: Limits | None = None,
        rule: Rule | None = None,
        call_timeout_s: float = 20.0,
        walls: bool = True,
        journal: str = "",
        book: Book = find,
    ) -> None:
        super().__init__()
        self.journal = journal
        self.size, self.limits, self.rule, self.walls = size, limits or Limits(), rule or Rule(), walls
        self.call_timeout_s, self.book = call_timeout_s * OWN_LIMIT, book
        self.slots: WeakKeyDictionary[DesktopEnv, RunningSlot] = WeakKeyDictionary()

    async def start(self) -> None:
        """See that the programs are there. Raises Misconfigured naming the command that installs them."""
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per action would drown the pool's own
        if lacking := await asyncio.to_thread(missing):
            raise Misconfigured(
                f"provider local_desktop needs {', '.join(lacking)}: run `guiderail doctor --install desktop`"
            )
        why = await asyncio.to_thread(sandbox.refusal) if self.walls else "it was asked for"
        if why:
            log.warning(WHY_NO_WALLS, why)

    async def new_env(self) -> Env:
        """A desktop of its own. Raises InfraError."""
        slot = await start_slot(self.size, self.limits, self.rule, walls=self.walls, journal=self.journal)
        machine = Machine("", uds=slot.socket, call_timeout_s=self.call_timeout_s)
        env = _SlotEnv(machine, slot, book=self.book, call_timeout_s=self.call_timeout_s)
        try:
            await machine.hello()
        except BaseException:
            await env.close()
            raise
        self.slots[env] = slot
        return env

    def healthy(self, env: Env) -> bool:
        """Whether its server runs and no call broke it."""
        return isinstance(env, DesktopEnv) and env in self.slots and self.slots[env].alive and not env.broken


class _SlotEnv(DesktopEnv):
    """A desktop that ends with its env."""

    def __init__(self, machine: Machine, slot: RunningSlot, *, book: Book, call_timeout_s: float) -> None:
        super().__init__(machine, book=book, call_timeout_s=call_timeout_s)
        self._slot = slot

    async def close(self) -> None:
        """End the desktop. Idempotent."""
        await super().close()
        await self._slot.stop()
