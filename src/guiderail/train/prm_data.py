"""Steps for a process reward model: played by experts, disturbed experts, chance and the policy; labelled by the state
judge.

Guarantees: what is played depends on (run seed, part, template, source, number) alone, never on the number of screens;
training plays train templates and calibration held-out ones, on instances that no evaluation split has; a step that the
state judge cannot label is left out and counted. The label is the state judge's, so a judge trained here can at best be
as good as that (see `rewards.progress`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guiderail.actions.codec import NotExpressible
from guiderail.actions.types import Click, Finish, Type, Wait
from guiderail.actions.wire import action_from_json
from guiderail.models.frames import FrameStore
from guiderail.models.prompts import PromptBuilder
from guiderail.params_prm import Prm
from guiderail.pool.client import PoolClient, RemoteEnv
from guiderail.pool.work import map_pool
from guiderail.rewards.process import StepContext, context_of, kind_of, point_of, said
from guiderail.rewards.progress import Facts, ProgressJudge
from guiderail.rollout.judging import Judged
from guiderail.rollout.types import Episode
from guiderail.seeds import derive_seed
from guiderail.tasks.experts.scene import Decision, Scene, snap
from guiderail.tasks.splits import Manifest, judge_task
from guiderail.tasks.suites import get_suite
from guiderail.tasks.types import TaskSpec

SCRIPTED = ("expert", "noised", "random")
WRONG = {"element": 5, "near": 3, "point": 2, "text": 2, "again": 1, "wait": 1, "finish": 1}
"""How a wrong step comes about, and how often."""


@dataclass(frozen=True)
class Labelled:
    """A step, whether it was progress, and where it comes from."""

    step: StepContext
    good: bool
    task: TaskSpec
    source: str
    episode: str


@dataclass(frozen=True)
class Collected:
    """Labelled steps in the order of the plan; unlabelled: steps without a label. env_steps: all steps that were
    played, unread ones and episodes without a result included; tokens: sampled for them."""

    steps: list[Labelled]
    unlabelled: int
    env_steps: int = 0
    tokens: int = 0

    def __add__(self, other: Collected) -> Collected:
        return Collected(
            self.steps + other.steps,
            self.unlabelled + other.unlabelled,
            self.env_steps + other.env_steps,
            self.tokens + other.tokens,
        )


def count_of(prm: Prm, source: str, part: str) -> int:
    """Episodes of a source per template."""
    wanted: int = getattr(prm, source)
    return wanted if part == "train" or wanted == 0 else max(1, round(wanted * prm.calibration))


def plan(manifest: Manifest, prm: Prm, part: str, run_seed: int, source: str) -> dict[str, list[TaskSpec]]:
    """Tasks of a source by template."""
    numbers = range(count_of(prm, source, part))
    return {
        t: [judge_task(manifest, part, run_seed, t, source, i) for i in numbers] for t in manifest[f"{part}_templates"]
    }


async def scripted(
    pool: tuple[str, str],
    manifest: Manifest,
    prm: Prm,
    part: str,
    run_seed: int,
    builder: PromptBuilder,
    frames: FrameStore,
    *,
    workers: int,
    retries: int,
    done: Callable[[int], None],
) -> Collected:
    """Play all scripted episodes of a part."""
    jobs = [
        (source, task)
        for source in SCRIPTED
        for tasks in plan(manifest, prm, part, run_seed, source).values()
        for task in tasks
    ]
    jobs.sort(key=lambda j: j[1].template)  # a screen keeps its page while it can

    async def one(env: RemoteEnv, job: tuple[str, TaskSpec]) -> Collected:
        return await play(env, job[1], job[0], prm, run_seed, builder, frames)

    async with PoolClient(*pool) as client:
        found = await map_pool(
            client, jobs, one, workers=workers, retries=retries, holder="prm", done=lambda _: done(1)
        )
    return sum(found, Collected([], 0))


async def play(
    env: RemoteEnv, task: TaskSpec, source: str, prm: Prm, run_seed: int, builder: PromptBuilder, frames: FrameStore
) -> Collected:
    """One scripted episode of `source` on `task`."""
    template = get_suite(task.suite).templates[task.template]
    result = await env.reset(task)
    instruction = result.observation.instruction
    watch = await ProgressJudge().start(task, result.observation, env, 0)
    key, words, found, lost = f"{source}/{task.id}/{run_seed}", list[str](), list[Labelled](), 0
    last: Decision | None = None
    for step in range(task.max_steps):
        seen = result.observation
        frames.put(seen.png)
        codec = builder.codec_for(seen.width, seen.height)
        rng = random.Random(derive_seed("judge-data", run_seed, source, task.id, step))
        wanted = template.expert(watch.before, instruction, len(watch.history), watch.history)
        decision = choose(source, rng, prm.noise, wanted, watch.before, last)
        if decision is None:
            break
        action, thought = last = snap(decision[0], prm.point_grid), decision[1]
        ended, solved = isinstance(action, Finish), None
        try:
            text = codec.render(action, thought)
            if isinstance(action, Finish):
                solved = action.status == "success" and await env.evaluate() >= task.threshold
            else:
                result = await env.step(action)
                ended = result.done
                solved = result.raw_reward >= task.threshold if ended else None
        except (NotExpressible, ValueError):  # the format or the screen has no such action: nothing happened
            break
        frames.put(result.observation.png)
        shown = Judged(step, seen, result.observation, action, thought, text, ended, solved)
        votes = await (await watch.step(shown))
        if votes.valid:
            context = context_of(shown, instruction, tuple(words), key)
            found.append(Labelled(context, votes.valid[0] > 0, task, source, key))
        else:
            lost += 1
        words.append(said(shown))
        if ended:
            break
    return Collected(found, lost, len(words))


def choose(
    source: str, rng: random.Random, noise: float, wanted: Decision | None, facts: Facts, last: Decision | None
) -> Decision | None:
    """What a source does next; None ends its episode."""
    if source == "expert":
        return wanted
    if source == "random":
        return Click(rng.random(), rng.random()), f'click "{_word(rng, facts)}"'
    return wrong(rng, wanted, facts, last) if wanted is None or rng.random() < noise else wanted


def wrong(rng: random.Random, wanted: Decision | None, facts: Facts, last: Decision | None) -> Decision:
    """A step that is probably wrong, of the kinds agents make: another element, beside the target, anywhere, another
    text, once more, waiting, giving up early. (The state judge says whether it was wrong.)"""
    kind = rng.choices(list(WRONG), list(WRONG.values()))[0]
    action, thought = wanted or (None, "done")
    if kind == "near" and isinstance(action, Click):
        x, y = (v + rng.choice((-1, 1)) * rng.uniform(0.08, 0.25) for v in (action.x, action.y))
        return Click(min(1.0, max(0.0, x)), min(1.0, max(0.0, y))), thought
    if kind == "point":
        return Click(rng.random(), rng.random()), thought
    if kind == "text" and isinstance(action, Type):
        text = rng.choice([action.text[::-1], action.text[:-1], action.text * 2, _word(rng, facts)]) or "x"
        return Type(text), f'type "{text}"'
    if kind == "again" and last is not None:
        return last
    if kind == "wait":
        return Wait(1.0), "wait"
    if kind == "finish":
        return Finish("success"), "done"
    return _other(rng, facts)


def _other(rng: random.Random, facts: Facts) -> Decision:
    """A click on some element that shows text, named truly."""
    nodes = [n for n in Scene.of(facts).nodes if n.words and n.w * n.h < 0.2]
    if not nodes:
        return Click(rng.random(), rng.random()), "click"
    node = rng.choice(nodes)
    return Click(*node.centre), f'click "{" ".join(w.text for w in node.words[:2])}"'


def _word(rng: random.Random, facts: Facts) -> str:
    words = sorted({w.text for n in Scene.of(facts).nodes for w in n.words})
    return rng.choice(words) if words else "ok"


def from_episodes(episodes: Sequence[Episode], frames: FrameStore) -> Collected:
    """Labelled steps of rollouts that the state judge watched; episodes without a result are left out."""
    found, lost = list[Labelled](), 0
    for e in episodes:
        if e.outcome.reward is None:
            continue
        words: list[str] = []
        for i, s in enumerate(e.steps):
            if not s.action or s.parse_error:
                continue
            after = e.steps[i + 1].frame if i + 1 < len(e.steps) else e.last_frame
            png, action = frames.get_png(s.frame), action_from_json(json.loads(s.action))
            if s.votes:
                context = StepContext(
                    instruction=e.instruction,
                    history=tuple(words),
                    before=s.frame,
                    action=s.completion.text,
                    after=after,
                    kind=kind_of(action),
                    width=int.from_bytes(png[16:20], "big"),  # PNG IHDR
                    height=int.from_bytes(png[20:24], "big"),
                    key=f"policy/{e.id}/{s.step}",
                    said=" ".join((s.thought or s.completion.text).split()),
                    point=point_of(action),
                    ended=s is e.steps[-1] and e.outcome.cause != "step_limit",
                )
                found.append(Labelled(context, s.votes[0] > 0, e.task, "policy", f"policy/{e.id}"))
            else:
                lost += 1
            words.append(" ".join((s.thought or s.completion.text).split()))
    played = [s for e in episodes for s in e.steps]
    return Collected(found, lost, len(played), sum(len(s.completion.ids) for s in played))


def write_steps(path: Path, steps: Sequence[Labelled]) -> None:
    """One JSON line a step: write beside, fsync, rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("w", encoding="utf-8") as f:
        for s in steps:
            line: dict[str, Any] = asdict(s)
            f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        f.flush()
        os.fsync(f.fileno())
    os.replace(beside, path)


def read_steps(path: Path) -> list[Labelled]:
    """Inverse of `write_steps`."""
    made = []
    for line in path.read_bytes().splitlines():
        d = json.loads(line)
        s = d["step"]
        s["history"], s["point"] = tuple(s["history"]), None if s["point"] is None else tuple(s["point"])
        made.append(Labelled(StepContext(**s), d["good"], TaskSpec.from_json(d["task"]), d["source"], d["episode"]))
    return made


def run_scripted(*args: Any, **options: Any) -> Collected:
    """`scripted` for callers without an event loop."""
    return asyncio.run(scripted(*args, **options))
