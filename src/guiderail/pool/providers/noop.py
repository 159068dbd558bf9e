"""An environment without a screen: counts its steps. For tests of the pool and for measuring the pool's own cost.

`Type("!crash")`, `Type("!hang")`, `Type("!slow")` (0.3 s) and `Type("!bug")` make it misbehave on demand; `Finish`
ends the episode. The raw reward is the number of steps taken since reset, so that an action done twice shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import zlib
from typing import Any

from guiderail.actions.types import Action, Finish, Key, Type
from guiderail.envs.keys import chord_events
from guiderail.envs.types import Env, InfraError, Observation, StepResult
from guiderail.pool.providers.local import LocalProvider
from guiderail.tasks.types import TaskSpec

WIDTH, HEIGHT = 8, 8


def png(shade: int) -> bytes:
    """An 8x8 grey PNG of `shade` (0 to 255)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([shade % 256]) * WIDTH for _ in range(HEIGHT))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class NoopEnv:
    """Implements `Env` in memory."""

    def __init__(self) -> None:
        self.task: TaskSpec | None = None
        self.steps = 0
        self.dead = False

    def _result(self, done: bool = False) -> StepResult:
        assert self.task is not None
        frame = png(self.task.seed + self.steps)
        seen = Observation(hashlib.sha256(frame).hexdigest(), WIDTH, HEIGHT, f"noop {self.task.id}", self.steps, frame)
        return StepResult(seen, done, float(self.steps), {"steps": self.steps})

    async def reset(self, task: TaskSpec) -> StepResult:
        """Start `task`. Template "missing" is unknown (ValueError), "broken" raises InfraError."""
        if task.template == "missing":
            raise ValueError("template 'missing' does not exist")
        if task.template == "broken":
            raise InfraError("the page does not load")
        self.task, self.steps = task, 0
        return self._result()

    async def step(self, action: Action) -> StepResult:
        """Count the step, or misbehave as asked."""
        if self.dead:
            raise InfraError("the page is gone")
        if isinstance(action, Key):
            chord_events(action.keys)  # an unknown key is refused before anything is done
        self.steps += 1
        match action:
            case Type(text="!crash"):
                self.dead = True
                raise InfraError("the page crashed")
            case Type(text="!hang"):
                await asyncio.sleep(3600)
            case Type(text="!slow"):
                await asyncio.sleep(0.3)
            case Type(text="!bug"):
                raise RuntimeError("a bug in the environment")
            case _:
                pass
        return self._result(done=isinstance(action, Finish))

    async def evaluate(self) -> float:
        """Steps taken since reset."""
        return float(self.steps)

    async def oracle(self) -> list[dict[str, Any]]:
        """One made-up element."""
        return [{"text": "noop", "box": [0.0, 0.0, 1.0, 1.0]}]

    async def close(self) -> None:
        """Mark as gone."""
        self.dead = True


class NoopProvider(LocalProvider):
    """Makes `NoopEnv`s; `boot_s` seconds each."""

    name = "noop"

    def __init__(self, boot_s: float = 0.0) -> None:
        super().__init__()
        self.boot_s = boot_s

    async def new_env(self) -> Env:
        """A fresh counter."""
        await asyncio.sleep(self.boot_s)
        return NoopEnv()

    def healthy(self, env: Env) -> bool:
        """False once it crashed."""
        return isinstance(env, NoopEnv) and not env.dead
