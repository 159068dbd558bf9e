"""A desktop as an environment: any machine that speaks OSWorld's VM-side protocol, ours or a stock image.

What a task is (instruction, setup, judge) comes from a book of desktop tasks by the task's suite (`desktop_tasks`).
Guarantees: a setup that fails is an InfraError, never a failure of the agent; an env that failed half way, or was
cancelled there, is broken for good; frames are PNG; the step's info says whether the screen settled and what it took.
Finish and Answer do nothing to the screen: they are kept for the judge (`Said`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from guiderail.actions.types import Action, Finish, Nav
from guiderail.envs.accessibility import elements
from guiderail.envs.desktop_tasks import Book, DesktopTask, Said, Watched, find
from guiderail.envs.machine import Machine, Seen
from guiderail.envs.machine_wire import Refusal
from guiderail.envs.types import TASK_S, InfraError, Observation, StepResult, UsedUp
from guiderail.tasks.types import TaskSpec

log = logging.getLogger("guiderail.envs.desktop")
MAX_LINES = 100  # of side effects: one who unpacks an archive shall not fill the records


class DesktopEnv:
    """Implements `Env` on `machine`.

    Each reset makes the desktop anew. A machine that cannot do that itself (a VM's own desktop, a stock image) is taken
    for clean once, since the pool hands it over so; a second reset is an InfraError: the next lease has a clean one.
    """

    task_s = TASK_S

    def __init__(self, machine: Machine, *, book: Book = find, call_timeout_s: float = 20.0) -> None:
        self.machine, self.book, self.call_timeout_s = machine, book, call_timeout_s
        self.used = False
        self.broken = ""
        self.task: DesktopTask | None = None
        self.said = Said()
        self._step = 0
        self._last: Observation | None = None

    @property
    def fence(self) -> int:
        """The fencing token of the present lease (see `types.Env`'s users in the pool)."""
        return self.machine.fence

    @fence.setter
    def fence(self, token: int) -> None:
        self.machine.fence = token

    async def reset(self, task: TaskSpec) -> StepResult:
        """Start `task`: fresh desktop, its setup, first look.

        Raises, with nothing done, ValueError for a task that no book knows and UsedUp where the server cannot reset
        itself (OSWorld's own); InfraError when the setup fails.
        """
        chosen = self.book(task)
        async with self._call(f"reset {task.id}", self.call_timeout_s + chosen.setup_s):
            began = time.perf_counter()
            if self.machine.resets:
                await self.machine.reset()
            elif self.used:
                raise UsedUp(f"{self.machine.where} has had its episode and cannot reset itself: take a new lease")
            self.used = True
            try:
                await chosen.setup(self.machine)
            except (Refusal, OSError, ValueError) as e:
                raise InfraError(f"setup of {task.id} failed: {e}", "crash") from e
            self.task, self.said, self._step = chosen, Said(), 0
            seen = await self.machine.look()
            return self._result(seen, {"reset_ms": round(1000 * (time.perf_counter() - began), 1)})

    async def step(self, action: Action) -> StepResult:
        """Do `action`, wait until the screen has settled, look.

        Raises ValueError, with nothing done, for an action that means nothing here; InfraError.
        """
        if self.task is None:
            raise ValueError("step before reset")
        if isinstance(action, Nav):
            raise ValueError("a desktop has no navigation buttons")
        async with self._call(f"step {type(action).__name__}", 2 * self.call_timeout_s + getattr(action, "seconds", 0)):
            seen = await self.machine.act(action)
            self._step += 1
            self.said = self.said.heard(action)
            return self._result(seen, {}, done=isinstance(action, Finish))

    async def observe(self) -> StepResult:
        """The screen now; the step count stays."""
        if self.task is None:
            raise ValueError("observe before reset")
        async with self._call("observe", self.call_timeout_s):
            return self._result(await self.machine.look(settle=False), {})

    async def evaluate(self) -> float:
        """The judge's number for the present state. What the judge raises is raised on, InfraError too."""
        if self.task is None:
            raise ValueError("evaluate before reset")
        async with self._call("evaluate", self.call_timeout_s + self.task.judge_s, breaks=False):
            return float(await self.task.judge(self.machine, self.said))

    async def side_effects(self) -> list[str] | None:
        """See `types.Reports`: at most MAX_LINES; None for a task that does not watch, or a home that is not told."""
        if self.task is None:
            raise ValueError("side_effects before reset")
        if not isinstance(self.task, Watched):
            return None
        async with self._call("side_effects", self.call_timeout_s, breaks=False):
            try:
                return (await self.task.side_effects(self.machine))[:MAX_LINES]
            except (Refusal, ValueError) as e:
                log.warning("what else changed is not known: %s", e)
                return None

    async def oracle(self) -> list[dict[str, Any]]:
        """What the accessibility tree shows on the screen, in document order (see `accessibility.elements`)."""
        async with self._call("oracle", self.call_timeout_s + 30.0):
            try:
                return elements(await self.machine.accessibility(), *self.machine.size)
            except Refusal as e:
                raise InfraError(f"the accessibility tree was not told: {e}", "crash") from e

    async def close(self) -> None:
        """Drop the connection. Idempotent."""
        self.broken = self.broken or "closed"
        await self.machine.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    def _result(self, seen: Seen, info: dict[str, Any], done: bool = False) -> StepResult:
        assert self.task is not None
        width, height = self.machine.size
        digest = hashlib.sha256(seen.png).hexdigest()
        observation = Observation(digest, width, height, self.task.instruction, self._step, seen.png)
        return StepResult(observation, done, 0.0, {**seen.info, **info})

    @contextlib.asynccontextmanager
    async def _call(self, what: str, limit_s: float, breaks: bool = True) -> AsyncGenerator[None, None]:
        """A deadline around one call."""
        if self.broken:
            raise InfraError(f"{what}: this desktop is {self.broken}", "crash")
        try:
            async with asyncio.timeout(limit_s):
                yield
        except ValueError:
            raise
        except TimeoutError as e:
            self.broken = f"broken by {what}, which took too long"
            raise InfraError(f"{what}: not done within {limit_s:g} s", "timeout") from e
        except BaseException as e:
            if breaks or isinstance(e, InfraError | asyncio.CancelledError):
                self.broken = f"broken by {what}: {type(e).__name__}: {e}"
            raise
