"""Whether every instance of a desktop suite is a sound task, tried on real desktops.

For each instance: the state at the start scores 0, doing nothing and claiming success scores 0, tampering (what the
judge looks for, written everywhere but where it looks; the judge's own file names; strange files) scores 0, and the
scripted expert scores 1. Guarantees: an instance that the machine failed at is tried again on a new desktop, TRIES
times in all, then it counts as failed; no desktop outlives the check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guiderail.actions.types import Finish, Wait
from guiderail.envs.desktop import DesktopEnv
from guiderail.envs.machine import Machine
from guiderail.envs.types import InfraError, JudgeError
from guiderail.pool.providers.local_desktop import LocalDesktopProvider
from guiderail.pool.vm.settle import Rule
from guiderail.tasks.desktop.suite import make
from guiderail.tasks.osworld import OsworldTask
from guiderail.tasks.selftest import run_expert
from guiderail.tasks.types import TaskSpec

SIZE = (640, 480)
TRIES = 3
CALL_TIMEOUT_S = 60.0
RULE = Rule(limit_s=15.0)  # the tasks are tried, not the machine: a busy one saves late, and no judge must be early


@dataclass(frozen=True)
class Checked:
    """Scores of one instance; `error`: why it has none. `did`: what the expert thought at each step."""

    task: TaskSpec
    initial: float = -1.0
    idle: float = -1.0
    tampered: float = -1.0
    expert: float = -1.0
    did: tuple[str, ...] = ()
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the task is sound."""
        return not self.error and (self.initial, self.idle, self.tampered, self.expert) == (0, 0, 0, 1)

    def __str__(self) -> str:
        """One line."""
        scores = f"start {self.initial:g}, nothing {self.idle:g}, tampered {self.tampered:g}, expert {self.expert:g}"
        return f"{self.task.id}: {self.error or scores} (expert did {list(self.did)})"


async def tamper(machine: Machine, task: OsworldTask, files: Mapping[str, bytes]) -> None:
    """Write what the judge of `task` looks for beside where it looks, and what a judge might read by mistake. `files`:
    those of the task's setup, among them what the judge compares with."""
    home = machine.home
    for check in task.checks:
        rules = (check.expected or {}).get("rules", {})
        wanted = rules.get("expected", "") if isinstance(rules, dict) else rules[0]["text"]
        result = check.result or {}
        path, dest = str(result.get("path", f"{home}/result.txt")), str(result.get("dest", "result.txt"))
        places = [f"{home}/{dest}", f"/tmp/{dest}", f"{path}.new", f"{home}/Desktop/{path.rpartition('/')[2]}"]
        expected = check.expected or {}
        text = files[expected["path"]] if expected.get("type") == "setup_file" else str(wanted).encode()
        if isinstance(wanted, list):  # names that a folder should hold
            places, text = [f"{home}/Desktop/{name}" for name in wanted], b"x"
        for place in places:
            await machine.write(place, text)
    for place in ("score", "scores.json", "judge/answer.json"):
        await machine.write(f"{home}/{place}", b'{"scores": [1.0]}')


async def check(env: DesktopEnv, task: TaskSpec) -> Checked:
    """Try one instance. Raises InfraError."""
    await env.reset(task)
    initial = await env.evaluate()
    await env.step(Wait(0.1))
    await env.step(Finish("success"))
    idle = await env.evaluate()
    made = make(task)
    await tamper(env.machine, made.task, made.files)
    await env.step(Finish("success"))
    tampered = await env.evaluate()
    played = await run_expert(env, task)
    return Checked(task, initial, idle, tampered, played["reward"], tuple(played["thoughts"]))


async def check_all(
    tasks: Sequence[TaskSpec], slots: int, done: Callable[[Checked], None] = lambda checked: None
) -> list[Checked]:
    """`check` of each, on `slots` desktops at a time, in the order of `tasks`. Raises Misconfigured (no desktops)."""
    provider = LocalDesktopProvider(size=SIZE, rule=RULE, call_timeout_s=CALL_TIMEOUT_S)
    await provider.start()
    queue, found = list(enumerate(tasks))[::-1], dict[int, Checked]()

    async def worker() -> None:
        env: Any = None
        try:
            while queue:
                index, task = queue.pop()
                for tries in range(1, TRIES + 1):
                    try:
                        env = env or await provider.new_env()
                        found[index] = await check(env, task)
                        break
                    except JudgeError as e:
                        found[index] = Checked(task, error=f"the judge: {e}")
                        break
                    except InfraError as e:
                        found[index] = Checked(task, error=f"{e} ({tries} tries)")
                        if env is not None:
                            await env.close()
                            env = None
                done(found[index])
        finally:
            if env is not None:
                await env.close()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(slots, len(tasks))):
                group.create_task(worker())
    finally:
        await provider.stop()
    return [found[i] for i in range(len(tasks))]
