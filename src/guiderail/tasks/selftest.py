"""Self-test of a template on a real environment: the expert succeeds, doing nothing does not, chance rarely does.

Guarantees: works through any `Env`, asks nothing of the page but its oracle, and is deterministic (random clicks are
hashed from the task). Infrastructure errors are not caught: a self-test that could not run has no result.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from guiderail.actions.types import Action, Click, Finish, Wait
from guiderail.tasks.experts.scene import GRID, snap
from guiderail.tasks.splits import derive
from guiderail.tasks.suites import get_suite, open_ended
from guiderail.tasks.types import TaskSpec

SPARES = 3
"""Instances tried in place of one whose target is hidden."""


class Seen(Protocol):
    """The part of an observation used here."""

    @property
    def instruction(self) -> str:
        """What the page asks for."""
        ...


class Result(Protocol):
    """The part of a step result used here."""

    @property
    def observation(self) -> Seen:
        """The screen."""
        ...

    @property
    def done(self) -> bool:
        """Whether the page ended the episode."""
        ...


class Screen(Protocol):
    """The part of `envs.types.Env` used here (tasks stand below envs and must not import them)."""

    async def reset(self, task: TaskSpec) -> Result:
        """Start `task`."""
        ...

    async def step(self, action: Action) -> Result:
        """Do `action`."""
        ...

    async def evaluate(self) -> float:
        """Raw reward."""
        ...

    async def oracle(self) -> list[dict[str, Any]]:
        """DOM facts."""
        ...


async def run_expert(env: Screen, task: TaskSpec, grid: float = GRID) -> dict[str, Any]:
    """Run the expert on `task` with points rounded to `grid`.

    Returns {"success": bool, "reward": float, "instruction": str, "thoughts": [str], "actions": [Action],
    "declined": bool}; declined means the expert saw no move at the very start (its target is hidden, about one
    instance in a hundred of pages that scatter buttons).
    """
    template = get_suite(task.suite).templates[task.template]
    result = await env.reset(task)
    instruction = result.observation.instruction
    actions: list[Action] = []
    thoughts: list[str] = []
    while not result.done and len(actions) < task.max_steps:
        scene = await env.oracle() if template.looks(len(actions)) else []
        decision = template.expert(scene, instruction, len(actions), actions)
        if decision is None:
            break
        actions.append(snap(decision[0], grid))
        thoughts.append(decision[1])
        result = await env.step(actions[-1])
        if isinstance(actions[-1], Finish):
            break
    success, reward = await _judge(env, task, result.done)
    return {
        "success": success,
        "reward": reward,
        "instruction": instruction,
        "thoughts": thoughts,
        "actions": actions,
        "declined": not actions,
    }


async def run_actions(env: Screen, task: TaskSpec, actions: Sequence[Action]) -> bool:
    """Do `actions` blindly until the page ends the episode; whether that succeeded."""
    result = await env.reset(task)
    for action in actions:
        if result.done:
            break
        result = await env.step(action)
    return (await _judge(env, task, result.done))[0]


def random_clicks(task: TaskSpec) -> list[Action]:
    """max_steps clicks spread evenly over the screen, hashed from the task's id."""
    rng = random.Random(derive("selftest", task.id))
    return [Click(rng.random(), rng.random()) for _ in range(task.max_steps)]


async def selftest(env: Screen, tasks: Sequence[TaskSpec], grid: float = GRID) -> dict[str, Any]:
    """Check one template on `tasks`, all of this template.

    An instance whose expert declines (see `run_expert`) is replaced for the expert's check by up to SPARES others.
    Returns {"template", "instances", "expert", "noop", "random" (success rates), "steps" (mean expert length),
    "instruction" and "thoughts" (of the first instance), "declined" (ids that were replaced), "failed" (ids the expert
    missed or declined for good, or that doing nothing solved), "ok" (nothing failed)}.
    Raises ValueError when `tasks` is empty or mixed.
    """
    if len({t.template for t in tasks}) != 1:
        raise ValueError(f"selftest takes instances of one template, got {sorted({t.template for t in tasks})}")
    scripted = get_suite(tasks[0].suite).templates[tasks[0].template].scripted
    if not scripted:
        return await _unscripted(env, tasks)
    runs = [await run_expert(env, t, grid) for t in tasks]
    declined = [t.id for t, run in zip(tasks, runs, strict=True) if run["declined"]]
    for i, task in enumerate(tasks):
        for k in range(SPARES):
            if runs[i]["declined"]:
                runs[i] = await run_expert(env, replace(task, seed=derive("spare", task.id, k)), grid)
    idle = [await run_actions(env, t, [Wait(1.0)] * t.max_steps) for t in tasks]
    chance = [await run_actions(env, t, random_clicks(t)) for t in tasks]
    failed = [t.id for t, run, noop in zip(tasks, runs, idle, strict=True) if noop or not run["success"]]
    n = len(tasks)
    return {
        "template": tasks[0].template,
        "instances": n,
        "expert": sum(run["success"] for run in runs) / n,
        "noop": sum(idle) / n,
        "random": sum(chance) / n,
        "steps": sum(len(run["actions"]) for run in runs) / n,
        "instruction": runs[0]["instruction"],
        "thoughts": runs[0]["thoughts"],
        "declined": declined,
        "failed": failed,
        "ok": not failed,
    }


async def _unscripted(env: Screen, tasks: Sequence[TaskSpec]) -> dict[str, Any]:
    """`selftest` of a template without an expert: doing nothing must not solve it (random clicks are not tried)."""
    first = await env.reset(tasks[0])
    idle = [(await _judge(env, tasks[0], first.done))[0]]
    idle += [await run_actions(env, t, []) for t in tasks[1:]]
    failed = [t.id for t, noop in zip(tasks, idle, strict=True) if noop]
    return {
        "template": tasks[0].template,
        "instances": len(tasks),
        "expert": 0.0,
        "noop": sum(idle) / len(idle),
        "random": 0.0,
        "steps": 0.0,
        "instruction": first.observation.instruction,
        "thoughts": [],
        "declined": [t.id for t in tasks],
        "failed": failed,
        "ok": not failed,
    }


async def _judge(env: Screen, task: TaskSpec, done: bool) -> tuple[bool, float]:
    """Success needs at least the task's threshold, and, where pages end episodes, that the page has done so."""
    reward = await env.evaluate()
    return (done or open_ended(task.suite)) and reward >= task.threshold, reward
