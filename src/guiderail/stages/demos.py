"""demos: scripted experts solve training instances; what they saw and did becomes the data of the warm-up.

Reads results/provision/tasks.json and params.demos. Writes demos.jsonl, one successful episode a line:
{"task": TaskSpec, "instruction", "steps": [{"frame": sha256 of the screen BEFORE the action, "action": canonical JSON,
"thought"}], "reward"}, and frames/<sha256>.png. Points are rounded to params.demos.point_grid and the rounded action is
the one that is done, so that every recorded episode succeeds as recorded. Instances are the manifest's train split,
then further ones of the same seed namespace, never a fresh or held-out one. Lines are sorted by template and instance;
the output depends on parameters alone, not on the number of slots.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from guiderail.actions.types import Action, Finish
from guiderail.actions.wire import action_to_json
from guiderail.errors import Explained
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.local import env_pool
from guiderail.pool.work import map_pool
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.tasks import splits
from guiderail.tasks.experts.scene import snap
from guiderail.tasks.suites import get_suite, open_ended
from guiderail.tasks.types import TaskSpec

MAX_MISSES = 10


class ExpertMisses(Explained, RuntimeError):
    """A scripted expert does not solve its template often enough to record demonstrations."""


@dataclass(frozen=True)
class Demo:
    """An expert's episode: the line for demos.jsonl, its frames (sha256 -> PNG), and whether it succeeded."""

    line: dict[str, Any]
    frames: dict[str, bytes]
    success: bool


def run(ctx: StageContext) -> None:
    """Record demonstrations of every train template and write them."""
    manifest = splits.load_manifest(paths.tasks_json())
    p, env = ctx.params.demos, ctx.params.env
    names: list[str] = list(manifest["train_templates"])
    with (
        env_pool(env, ctx.env_pool_url, owner=ctx.label, costs=ctx.pool_costs) as (url, token),
        ctx.progress(len(names), "templates") as bar,
    ):
        demos, missed = asyncio.run(
            record(url, token, manifest, p.per_template, p.point_grid, env.slots, env.max_infra_retries, bar.update)
        )
    frames = ctx.out / "frames"
    frames.mkdir()
    with (ctx.out / "demos.jsonl").open("w", encoding="utf-8") as f:
        for demo in demos:
            f.write(json.dumps(demo.line, ensure_ascii=False, separators=(",", ":")) + "\n")
            for sha, png in demo.frames.items():  # the client has checked that they belong together
                (frames / f"{sha}.png").write_bytes(png)
    steps = sum(len(d.line["steps"]) for d in demos)
    ctx.tracker.log({"demos.episodes": len(demos), "demos.steps": steps, "demos.missed": missed}, 0)
    ctx.say(f"{len(demos)} demonstrations of {len(names)} templates, {steps} steps; {missed} tries missed")


def instance(manifest: splits.Manifest, template: str, number: int) -> TaskSpec:
    """Training instance `number` of a template: the manifest's own first, then more from the train namespace."""
    known = [t for t in splits.tasks(manifest, "train") if t.template == template]
    if number < len(known):
        return known[number]
    used = {t.seed for t in known}
    more = number - len(known)
    for i in count():
        seed = splits.instance_seed("train", manifest["task_seed"], template, i)
        if seed not in used:
            used.add(seed)
            if more == 0:
                return replace(known[0], seed=seed, wording=number % manifest["wordings"])
            more -= 1
    raise AssertionError("unreachable")


async def record(
    url: str,
    token: str,
    manifest: splits.Manifest,
    per_template: int,
    grid: float,
    workers: int,
    retries: int,
    done: Callable[[int], None],
) -> tuple[list[Demo], int]:
    """`per_template` successful demonstrations of each train template, in order, and how many tries missed.

    Raises ExpertMisses naming a template whose expert misses more than MAX_MISSES times.
    """

    async def template(env: RemoteEnv, name: str) -> tuple[list[Demo], int]:
        kept: list[Demo] = []
        for number in range(per_template + MAX_MISSES):
            demo = await demonstrate(env, instance(manifest, name, number), grid)
            if demo.success:
                kept.append(demo)
            if len(kept) == per_template:
                return kept, number + 1 - per_template
        raise ExpertMisses(
            f"demos: the expert of {name} missed {MAX_MISSES + per_template - len(kept)} of "
            f"{per_template + MAX_MISSES} instances at demos.point_grid = {grid}; run `guiderail provision` to test "
            "the template, or choose a finer grid"
        )

    async with PoolClient(url, token) as client:
        found = await map_pool(
            client,
            sorted(manifest["train_templates"]),
            template,
            workers=workers,
            retries=retries,
            holder="demos",
            done=lambda _: done(1),
        )
    return [d for kept, _ in found for d in kept], sum(missed for _, missed in found)


async def demonstrate(env: RemoteEnv, task: TaskSpec, grid: float) -> Demo:
    """One episode of the expert on `task`."""
    template = get_suite(task.suite).templates[task.template]
    result = await env.reset(task)
    instruction = result.observation.instruction
    steps: list[dict[str, Any]] = []
    frames: dict[str, bytes] = {}
    history: list[Action] = []
    while not result.done and len(history) < task.max_steps:
        scene = await env.oracle() if template.looks(len(history)) else []
        decision = template.expert(scene, instruction, len(history), history)
        if decision is None:
            break
        action, thought = snap(decision[0], grid), decision[1]
        seen = result.observation
        frames[seen.frame] = seen.png
        steps.append({"frame": seen.frame, "action": action_to_json(action), "thought": thought})
        history.append(action)
        result = await env.step(action)
        if isinstance(action, Finish):
            break
    reward = await env.evaluate()
    line = {"task": task.to_json(), "instruction": instruction, "steps": steps, "reward": reward}
    return Demo(line, frames, (result.done or open_ended(task.suite)) and reward >= task.threshold)
