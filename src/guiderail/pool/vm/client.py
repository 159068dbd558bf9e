"""The pool's end of the wire to `pool.vm.noop`, as an `Env`.

Guarantees: an action is sent once; whatever keeps its reply away is an InfraError, and the connection is broken for
good then. `fence` is the token of the lease that the calls are made for; the machine refuses older ones, and calls
for a machine of another name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

from guiderail.actions.types import Action, Finish, Type
from guiderail.actions.wire import action_dumps
from guiderail.envs.types import InfraError, Observation, StepResult
from guiderail.pool.providers.noop import HEIGHT, WIDTH, png
from guiderail.tasks.types import TaskSpec


class MachineEnv:
    """One connection to one machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self.reader, self.writer, self.name, self.fence = reader, writer, name, 0
        self.broken = ""

    @classmethod
    async def open(cls, address: str, name: str) -> MachineEnv:
        """Connect. Raises OSError."""
        host, _, port = address.partition(":")
        return cls(*await asyncio.wait_for(asyncio.open_connection(host, int(port)), 5.0), name)

    async def _call(self, call: str, **fields: Any) -> dict[str, Any]:
        if self.broken:
            raise InfraError(f"{self.name}: the connection is {self.broken}")
        why, self.broken = self.broken, f"broken in {call}"
        try:
            said = {"call": call, "name": self.name, "fence": self.fence, **fields}
            self.writer.write(json.dumps(said).encode() + b"\n")
            reply: dict[str, Any] = json.loads(await self.reader.readline())
        except (OSError, ValueError, asyncio.LimitOverrunError) as e:
            raise InfraError(f"{self.name}: no reply to {call}: {type(e).__name__}: {e}") from e
        self.broken = why
        if "error" in reply:
            raise InfraError(f"{self.name}: {reply['error']}")
        return reply

    def _result(self, said: dict[str, Any], done: bool) -> StepResult:
        frame = png(said["steps"])
        digest = hashlib.sha256(frame).hexdigest()
        seen = Observation(digest, WIDTH, HEIGHT, f"noop {said['task']}", said["steps"], frame)
        return StepResult(seen, done, float(said["steps"]), {"machine": self.name})

    async def reset(self, task: TaskSpec) -> StepResult:
        """Start `task`. Raises ValueError for template "missing", InfraError."""
        if task.template == "missing":
            raise ValueError("template 'missing' does not exist")
        return self._result(await self._call("reset", what=task.id), False)

    async def step(self, action: Action) -> StepResult:
        """Do `action`; Type("!slow...") takes 0.3 s. Raises InfraError."""
        slow = {"sleep": 0.3} if isinstance(action, Type) and action.text.startswith("!slow") else {}
        return self._result(await self._call("step", what=action_dumps(action), **slow), isinstance(action, Finish))

    async def observe(self) -> StepResult:
        """The screen now."""
        return self._result(await self._call("evaluate"), False)

    async def evaluate(self) -> float:
        """Steps taken since reset."""
        return float((await self._call("evaluate"))["steps"])

    async def oracle(self) -> list[dict[str, Any]]:
        """Nothing is on the screen."""
        return []

    async def close(self) -> None:
        """Drop the connection; the machine stays."""
        self.broken = self.broken or "closed"
        self.writer.close()
