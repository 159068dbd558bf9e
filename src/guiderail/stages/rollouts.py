"""Where the rl stage's episodes come from: the env pool, or the recorded demonstrations.

Guarantees: tasks and samples are pure in (seed, iteration, round) and the weights; every round's records go to the
attempt folder as one part. Frames are kept in memory, as long as the trainer needs them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guiderail.envs.replay import ReplayEnv
from guiderail.envs.types import Env
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.models.policy import Policy
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import Prompt
from guiderail.params_train import Rl
from guiderail.rewards.match import PAGES, match
from guiderail.rewards.steps import step_reward
from guiderail.rollout.collector import CollectStats, Connect, collect
from guiderail.rollout.engines.base import Engine
from guiderail.rollout.export import demo_recordings
from guiderail.rollout.replay import Replay
from guiderail.rollout.store import write_episodes
from guiderail.rollout.types import Completion, Episode, SamplingParams
from guiderail.rollout.wave import Cost, Order, Wave, shown
from guiderail.seeds import derive_seed
from guiderail.stages.context import StageContext
from guiderail.stages.judging import Over
from guiderail.stages.promotion import rolled_out
from guiderail.tasks.recorded import Recording
from guiderail.tasks.splits import rl_task
from guiderail.tasks.types import TaskSpec
from guiderail.train.sampler import Sampler

FEATURE_BYTES = 256 << 20
"""Vision features that travel with a wave at most; beyond, the trainer makes its own."""


def before(phases: Sequence[Rl], number: int) -> tuple[int, int]:
    """(iterations, parts of the records) of the phases before `number`: an iteration has a part for each of its
    rounds."""
    earlier = phases[:number]
    return sum(rl.iterations for rl in earlier), sum(rl.iterations * max(1, rl.filter_rounds) for rl in earlier)


@dataclass(frozen=True)
class Checked:
    """An engine that asks before each batch whether to go on."""

    engine: Engine
    check: Callable[[], None]

    def generate(self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> list[Completion]:
        """See `Engine`."""
        self.check()
        return self.engine.generate(prompts, sampling)


@dataclass(frozen=True)
class Rollouts:
    """What both kinds share. first, parts: iterations and parts of earlier phases (`before`), whose tasks, records,
    pictures and weights come before."""

    ctx: StageContext
    rl: Rl
    policy: Policy
    sampler: Sampler
    first: int
    parts: int

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        """Tasks of a round of an iteration."""
        raise NotImplementedError

    def sampled(
        self, tasks: list[TaskSpec], version: int, slots: int = 0, check: Callable[[], None] = lambda: None
    ) -> tuple[list[Episode], FrameStore, CollectStats]:
        """Play tasks with weights number `version` on `slots` screens (0 = env.slots). check: called before each batch
        of the engine; what it raises ends the collection."""
        raise NotImplementedError

    def collect(self, tasks: list[TaskSpec], iteration: int, round: int = 0) -> tuple[list[Episode], FrameStore]:
        """Play tasks and record them."""
        episodes, frames, _ = self.sampled(tasks, iteration)
        self.record(episodes, frames, iteration, round)
        return episodes, frames

    def wave(self, order: Order, check: Callable[[], None] = lambda: None) -> Wave:
        """Play a wave: the tasks of the round that its number names. Records nothing."""
        tasks = self.tasks(*divmod(order.wave, max(1, self.rl.filter_rounds)))
        episodes, frames, stats = self.sampled(tasks, order.version, order.slots, check)
        cost = Cost(stats.seconds, stats.seconds_policy, sum(s.seconds_env for e in episodes for s in e.steps))
        vision, features = self.policy.features.known(shown(episodes))
        if sum(f.data.nbytes for f in features.values()) > FEATURE_BYTES:
            vision, features = "", {}
        return Wave(order, episodes, frames, cost, vision, features)

    def _play(
        self,
        tasks: list[TaskSpec],
        version: int,
        slots: int,
        check: Callable[[], None],
        connect: Connect | tuple[str, str],
        judge: Over | None = None,
        **options: Any,
    ) -> tuple[list[Episode], FrameStore, CollectStats]:
        """`rl.group_size` siblings of every task, judged by `judge`."""
        p, frames = self.ctx.params, FrameStore(None)
        builder = PromptBuilder(self.policy.tokenizer, p.prompt, self.policy.image_tokens, self.policy.resized)
        with self.sampler.sampling(frames, self.first + version) as engine:
            episodes, stats = collect(
                Checked(engine, check),
                connect,
                [(t, s) for t in tasks for s in range(self.rl.group_size)],
                builder,
                frames=frames,
                temperature=self.rl.temperature,
                run_seed=self.ctx.seed,
                policy_version=version,
                max_infra_retries=p.env.max_infra_retries,
                slots=slots or p.env.slots,
                judge=judge(frames) if judge else None,
                **options,
            )
        return episodes, frames, stats

    def part(self, iteration: int, round: int = 0) -> int:
        """Number of the part that holds the records of a round."""
        return self.parts + iteration * max(1, self.rl.filter_rounds) + round

    def record(self, episodes: list[Episode], frames: FrameStore, iteration: int, round: int) -> None:
        """Store the records, and the frames of the first episode; every `save_every` iterations show it in the
        tracker."""
        folder, at = self.ctx.work / "rollouts", self.first + iteration
        write_episodes(folder, episodes, part=self.part(iteration, round))
        sample = FrameStore(folder / "frames", durable=False)
        for k, step in enumerate(episodes[0].steps):
            png = frames.get_png(step.frame)
            sample.put(png)
            if iteration % self.rl.save_every == 0 and round == 0:
                self.ctx.tracker.image(f"rollout/step{k}", png, at)
        if iteration % self.rl.save_every == 0 and round == 0:
            self.ctx.tracker.episodes([rolled_out(episodes[0], frames.get_png, at)])


@dataclass(frozen=True)
class PoolRollouts(Rollouts):
    """Episodes in the env pool at `pool` (url, token), on endless fresh instances of the train templates."""

    pool: tuple[str, str]
    manifest: dict[str, Any]
    judge: Over

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        """`rl.groups` fresh instances, templates evenly drawn."""
        first = round * self.rl.groups
        at = self.first + iteration
        return [rl_task(self.manifest, self.ctx.seed, at, first + k) for k in range(self.rl.groups)]

    def sampled(
        self, tasks: list[TaskSpec], version: int, slots: int = 0, check: Callable[[], None] = lambda: None
    ) -> tuple[list[Episode], FrameStore, CollectStats]:
        """Play them, judged where the algorithm reads votes."""
        return self._play(tasks, version, slots, check, self.pool, self.judge)


@dataclass(frozen=True)
class Recorded:
    """Recordings by task id, their tasks, and the store of their frames."""

    recordings: dict[str, Recording]
    tasks: list[TaskSpec]
    frames: FrameStore


def read_recorded(file: Path, frames: Path) -> Recorded:
    """The demonstrations of a demos.jsonl as recordings. Raises InputError when there are none."""
    store = FrameStore(frames, cache=4)
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]  # text may hold U+2028
    if not lines:
        raise InputError(f"{file}: no demonstrations. Run `guiderail demos` again, or raise demos.per_template.")
    sizes: dict[str, tuple[int, int]] = {}

    def size(sha: str) -> tuple[int, int]:
        if sha not in sizes:
            png = store.get_png(sha)
            sizes[sha] = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")  # PNG IHDR
        return sizes[sha]

    tasks = [TaskSpec.from_json(line["task"]) for line in lines]
    made = demo_recordings(lines, size)
    return Recorded({t.id: r for t, r in zip(tasks, made, strict=True)}, tasks, store)


@dataclass(frozen=True)
class ReplayRollouts(Rollouts):
    """Episodes along recorded demonstrations: no browser, every iteration a new draw of them."""

    recorded: Recorded

    def __post_init__(self) -> None:
        wanted, there = self.rl.groups * max(1, self.rl.filter_rounds), len(self.recorded.tasks)
        if wanted > there:
            raise InputError(
                f"semi-online training wants {wanted} different recordings an iteration (rl.groups x rl.filter_rounds) "
                f"and has {there}: lower rl.groups, or raise demos.per_template"
            )

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        """`rl.groups` recordings, drawn without replacement over the rounds of an iteration."""
        key = ("recording", self.ctx.seed, self.first + iteration)
        drawn = sorted(self.recorded.tasks, key=lambda t: derive_seed(*key, t.id))
        return drawn[round * self.rl.groups : (round + 1) * self.rl.groups]

    def sampled(
        self, tasks: list[TaskSpec], version: int, slots: int = 0, check: Callable[[], None] = lambda: None
    ) -> tuple[list[Episode], FrameStore, CollectStats]:
        """Play them with patches."""
        p = self.rl.semi_online

        async def connect() -> Env:
            return ReplayEnv(
                self.recorded.recordings,
                lambda action, step: match(action, step.expected, step.width, step.height, PAGES),
                self.recorded.frames.get_png,
                lambda png: hashlib.sha256(png).hexdigest(),
                p.patch_threshold,
            )

        replay = Replay(p.patch, lambda found, parsed, thought: step_reward(found, parsed, thought, p.reward))
        return self._play(tasks, version, slots, check, connect, play=replay)
