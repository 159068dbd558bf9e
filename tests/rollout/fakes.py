"""Fakes for the collector: screens that show numbered frames, and an engine that clicks at the number it sees."""

from __future__ import annotations

import asyncio
import time

from guiderail.actions.types import Click
from guiderail.envs.types import InfraError, Observation, StepResult
from guiderail.rollout.types import Completion


class World:
    """All fake screens of a test: what was shown, done, opened and closed; faults by (task id, attempt, step)."""

    def __init__(self, frames, length=3, delay=lambda: 0.0) -> None:
        self.frames, self.length, self.delay = frames, length, delay
        self.faults: dict[tuple[str, int, int], Exception] = {}
        self.judge: dict[str, float | Exception] = {}
        self.attempts: dict[str, int] = {}
        self.log: list[tuple[str, int, object]] = []
        self.open = self.most_open = self.opened = self.next_number = 0
        self.connect_faults: list[Exception] = []
        self.busy = False
        self.steps_while_busy = 0

    async def connect(self):
        if self.connect_faults:
            raise self.connect_faults.pop(0)
        self.open, self.opened = self.open + 1, self.opened + 1
        self.most_open = max(self.most_open, self.open)
        return FakeEnv(self)


class FakeEnv:
    """Ends after `world.length` steps; raw reward 1 when every click hit the number shown. Every frame is unique."""

    def __init__(self, world: World) -> None:
        self.world, self.closed = world, False

    async def _show(self, step: int, done: bool, reward: float) -> StepResult:
        await asyncio.sleep(self.world.delay())
        fault = self.world.faults.pop((self.task.id, self.attempt, step), None)
        if fault:
            raise fault
        self.world.next_number += 1
        self.number, self.at = self.world.next_number, step
        sha = self.world.frames.paint(self.number)
        text = f"task {self.task.seed}"
        return StepResult(Observation(sha, 160, 210, text, step, self.world.frames.png[sha]), done, reward)

    async def reset(self, task):
        assert not self.closed
        self.task, self.hits = task, True
        self.attempt = self.world.attempts.get(task.id, -1) + 1
        self.world.attempts[task.id] = self.attempt
        return await self._show(0, False, 0.0)

    async def step(self, action):
        assert not self.closed
        self.world.steps_while_busy += self.world.busy
        self.world.log.append((self.task.id, self.number, action))
        if not isinstance(action, Click):
            raise ValueError(f"this screen has no {type(action).__name__}")
        self.hits &= abs(action.x * 1000 - self.number) < 0.5
        done = self.at + 1 >= self.world.length
        return await self._show(self.at + 1, done, float(self.hits) if done else 0.0)

    async def evaluate(self):
        await asyncio.sleep(self.world.delay())
        verdict = self.world.judge[self.task.id]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def oracle(self):
        return []

    async def close(self):
        if not self.closed:
            self.closed = True
            self.world.open -= 1


class NumberEngine:
    """Clicks at x = (number on the last frame) / 1000, or says what `script[instruction]` lists, step by step."""

    def __init__(self, tokenizer, world, seconds=0.0, script=None) -> None:
        self.tokenizer, self.world, self.seconds, self.script = tokenizer, world, seconds, script or {}
        self.batches: list[list[tuple[str, int]]] = []
        self.seeds: list[int] = []
        self.fail_at: int | None = None

    def generate(self, prompts, sampling):
        self.world.busy = True
        time.sleep(self.seconds)
        self.world.busy = False
        if self.fail_at == len(self.batches):
            raise MemoryError("engine is out of memory")
        out, batch = [], []
        for prompt, s in zip(prompts, sampling, strict=True):
            said = self.tokenizer.decode(prompt.ids)
            instruction = said.split("<|im_start|>user\n")[1].split("\n")[0]
            number = self.world.frames.number[prompt.frames[-1]]
            text = f"Action: see {number}\nCLICK(x={number / 1000:.3f}, y=0.500)"
            if instruction in self.script:
                turn = said.count("<|im_start|>assistant") - 1
                text = self.script[instruction][turn]
            ids = (*self.tokenizer.encode(text), 258)
            out.append(Completion(ids, tuple(-0.001 * i for i in range(len(ids))), "stop", text))
            batch.append((instruction, len(prompt.ids)))
            self.seeds.append(s.seed)
        self.batches.append(batch)
        return out


def lost(cause="crash"):
    return InfraError(f"the page is gone ({cause})", cause)
