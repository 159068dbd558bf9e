"""demos: scripted experts solve training instances; what they saw and did becomes the data of the warm-up.

Reads results/provision/tasks.json and params.demos. Writes demos.jsonl, one successful episode a line:
{"task": TaskSpec, "instruction", "steps": [{"frame": sha256 of the screen BEFORE the action, "action": canonical JSON,
"thought", "boxes": elements whose click is the same, [x1, y1, x2, y2] in fractions}], "reward"}, and
frames/<sha256>.png. Points are rounded to params.demos.point_grid and the rounded action is the one that is done, so
that every recorded episode succeeds as recorded. Instances are the manifest's train split, then further ones of the
same seed namespace, never a fresh or held-out one: params.demos.recorded of those, per template, go into recorded/,
in the same form, for benchmark sop and nothing else. Lines are sorted by template and instance;
the output depends on parameters alone, not on the number of slots.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from guiderail.actions.types import Action, Click, Finish
from guiderail.actions.wire import action_to_json
from guiderail.errors import Explained
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.local import env_pool
from guiderail.pool.work import map_pool
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.tasks import splits
from guiderail.tasks.experts.scene import Scene, snap
from guiderail.tasks.suites import get_suite, open_ended
from guiderail.tasks.types import Split, TaskSpec

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
    seen: list[Split] = ["fresh", "heldout"] if p.recorded else []
    held = [(s, t) for s in seen for t in dict.fromkeys(x.template for x in splits.tasks(manifest, s))]
    sources = [Source(t, p.per_template, partial(instance, manifest, t)) for t in sorted(names)]
    sources += [Source(t, p.recorded, partial(of_split, manifest, s, t), short=True) for s, t in held]
    with (
        env_pool(env, ctx.env_pool_url, owner=ctx.label, costs=ctx.pool_costs) as (url, token),
        ctx.progress(len(sources), "templates") as bar,
    ):
        found = asyncio.run(record(url, token, sources, p.point_grid, env.slots, env.max_infra_retries, bar.update))
    demos = write(ctx.out, [d for kept, _ in found[: len(names)] for d in kept])
    recorded = write(ctx.out / "recorded", [d for kept, _ in found[len(names) :] for d in kept])
    steps, missed = sum(len(d.line["steps"]) for d in demos), sum(n for _, n in found)
    ctx.tracker.log({"demos.episodes": len(demos), "demos.steps": steps, "demos.missed": missed}, 0)
    ctx.say(
        f"{len(demos)} demonstrations of {len(names)} templates, {steps} steps; {len(recorded)} episodes for "
        f"evaluation; {missed} tries missed"
    )


def write(folder: Path, demos: list[Demo]) -> list[Demo]:
    """Write lines and frames below `folder`."""
    frames = folder / "frames"
    frames.mkdir(parents=True)
    with (folder / "demos.jsonl").open("w", encoding="utf-8") as f:
        for demo in demos:
            f.write(json.dumps(demo.line, ensure_ascii=False, separators=(",", ":")) + "\n")
            for sha, png in demo.frames.items():  # the client has checked that they belong together
                (frames / f"{sha}.png").write_bytes(png)
    return demos


@dataclass(frozen=True)
class Source:
    """Instances of a template to record: `count` successes of task(0), task(1), ... (None: there are no more). short:
    fewer than `count` are no error."""

    template: str
    count: int
    task: Callable[[int], TaskSpec | None]
    short: bool = False

    def __str__(self) -> str:
        """What log lines say of it."""
        return f"demos of {self.template}"


def of_split(manifest: splits.Manifest, split: Split, template: str, number: int) -> TaskSpec | None:
    """Instance `number` of a template in a split; None when it has fewer."""
    found = [t for t in splits.tasks(manifest, split) if t.template == template]
    return found[number] if number < len(found) else None


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
    url: str, token: str, sources: list[Source], grid: float, workers: int, retries: int, done: Callable[[int], None]
) -> list[tuple[list[Demo], int]]:
    """Successful episodes of each source, in order, and how many tries missed.

    Raises ExpertMisses naming a template whose expert misses more than MAX_MISSES times.
    """

    async def play(env: RemoteEnv, source: Source) -> tuple[list[Demo], int]:
        kept: list[Demo] = []
        tries = 0
        while len(kept) < source.count and tries < source.count + MAX_MISSES:
            task = source.task(tries)
            if task is None:
                break
            demo = await demonstrate(env, task, grid)
            kept += [demo] if demo.success else []
            tries += 1
        if len(kept) < source.count and not source.short:
            raise ExpertMisses(
                f"demos: the expert of {source.template} missed {tries - len(kept)} of {tries} instances at "
                f"demos.point_grid = {grid}; run `guiderail provision` to test the template, or choose a finer grid"
            )
        return kept, tries - len(kept)

    async with PoolClient(url, token) as client:
        return await map_pool(
            client, sources, play, workers=workers, retries=retries, holder="demos", done=lambda _: done(1)
        )


async def demonstrate(env: RemoteEnv, task: TaskSpec, grid: float) -> Demo:
    """One episode of the expert on `task`."""
    template = get_suite(task.suite).templates[task.template]
    result = await env.reset(task)
    instruction = result.observation.instruction
    steps: list[dict[str, Any]] = []
    frames: dict[str, bytes] = {}
    history: list[Action] = []
    while not result.done and len(history) < task.max_steps:
        facts = await env.oracle() if template.looks(len(history)) else []
        decision = template.expert(facts, instruction, len(history), history)
        if decision is None:
            break
        action, thought = snap(decision[0], grid), decision[1]
        seen = result.observation
        frames[seen.frame] = seen.png
        step = {"frame": seen.frame, "action": action_to_json(action), "thought": thought}
        steps.append(step | {"boxes": boxes(facts, decision[0])})
        history.append(action)
        result = await env.step(action)
        if isinstance(action, Finish):
            break
    reward = await env.evaluate()
    line = {"task": task.to_json(), "instruction": instruction, "steps": steps, "reward": reward}
    return Demo(line, frames, (result.done or open_ended(task.suite)) and reward >= task.threshold)


def boxes(facts: Sequence[Mapping[str, Any]], action: Action) -> list[list[float]]:
    """The element that a click is on, for `rewards.match`; none for other actions."""
    if not isinstance(action, Click):
        return []
    b = Scene.of(facts).element(action.x, action.y)
    corners = (b.x, b.y, b.x + b.w, b.y + b.h)
    return [[round(min(1.0, max(0.0, v)), 4) for v in corners]] if b.w * b.h > 0 else []
