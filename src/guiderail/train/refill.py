"""Episodes for one update: a round of rollouts, or as many as the DAPO filter needs, and what earlier updates left.

Guarantees: without a filter, one round and every episode of it; with one, groups of spread until the update is full or
its rounds are used up (`algorithms.filters`); a group left over is kept with its frames, survives a kill, and carries
the version of the weights that sampled it, so that the gates and the importance weights know it is old.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from guiderail.algorithms.filters import Counts, Refill, keep_groups
from guiderail.checkpoints.save import publish
from guiderail.models.features import Frames
from guiderail.models.frames import FrameStore
from guiderail.params_train import Rl
from guiderail.rollout.store import read_episodes, write_episodes
from guiderail.rollout.types import Episode
from guiderail.tasks.types import TaskSpec
from guiderail.train.batch import rewards_of
from guiderail.train.steps import trajectory_returns


class Rollouts(Protocol):
    """Where episodes come from. Rounds of one iteration have different tasks; both methods are pure in (iteration,
    round) and the weights."""

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        """Fresh tasks of a round of an iteration."""
        ...

    def collect(self, tasks: list[TaskSpec], iteration: int, round: int = 0) -> tuple[list[Episode], PngFrames]:
        """Episodes of `rl.group_size` siblings per task, sampled from the current weights, and the frames they saw."""
        ...


class PngFrames(Frames, Protocol):
    """Frames that can be written to disk again."""

    def get_png(self, sha: str) -> bytes:
        """PNG bytes of a frame."""
        ...


@dataclass(frozen=True)
class Group:
    """All attempts of the siblings of one task, and where their frames are."""

    episodes: tuple[Episode, ...]
    frames: PngFrames

    @property
    def version(self) -> int:
        """Number of the weights that sampled it (a group that waits has steps)."""
        return next(s.policy_version for e in self.episodes for s in e.steps)


@dataclass(frozen=True)
class FramesOf:
    """Frames from several stores: the first that has a frame gives it."""

    stores: tuple[Frames, ...]

    def get(self, sha: str) -> Any:
        """The image with digest `sha`. Raises KeyError when no store has it."""
        for store in self.stores:
            try:
                return store.get(sha)
            except (KeyError, FileNotFoundError):
                continue
        raise KeyError(f"frame {sha} is in none of {len(self.stores)} stores")


@dataclass(frozen=True)
class Gathered:
    """fresh: all episodes of this iteration, for its metrics. used: those to train on, old ones first. refill: the
    state after the update was taken (None without a filter)."""

    fresh: list[Episode]
    used: list[Episode]
    frames: Frames
    refill: Refill[Group] | None = None
    before: Counts = field(default_factory=Counts)

    def metrics(self) -> dict[str, float]:
        """What this update took; empty without a filter."""
        if self.refill is None:
            return {}
        now, was = self.refill.counts.to_json(), self.before.to_json()
        names = {
            "rounds": "sampling_rounds",
            "used": "groups_used",
            "carried": "groups_carried",
            "short": "update_short",
        } | ({"expired": "groups_expired"} if now["expired"] else {})
        return {v: float(now[k] - was[k]) for k, v in names.items()} | {
            "groups_waiting": float(len(self.refill.waiting))
        }


def start(rl: Rl) -> Refill[Group] | None:
    """The buffer of a new run; None without a filter."""
    return Refill(rl.groups, rl.filter_rounds) if rl.filter_rounds else None


def gather(rollouts: Rollouts, refill: Refill[Group] | None, rl: Rl, iteration: int) -> Gathered:
    """Collect what the update of `iteration` trains on."""
    if refill is None:
        episodes, frames = rollouts.collect(rollouts.tasks(iteration), iteration)
        return Gathered(episodes, episodes, frames)
    before, fresh = refill.counts, list[Episode]()
    if rl.collection.mode == "async":
        oldest = iteration - rl.collection.max_staleness
        refill = refill.expire([g.version < oldest for g in refill.waiting])
    while not refill.done:
        episodes, frames = rollouts.collect(rollouts.tasks(iteration, refill.rounds), iteration, refill.rounds)
        fresh += episodes
        rewards = trajectory_returns(episodes, rewards_of(episodes, rl.reward_failure), rl)
        keys = [e.group for e in episodes]
        index, keep = keep_groups(rewards, keys, rewards == rewards, rl.filter_std)
        members: list[list[Episode]] = [[] for _ in keep]
        for i, e in zip(index.tolist(), episodes, strict=True):
            members[i].append(e)
        refill = refill.add([Group(tuple(m), frames) for m in members], keep.tolist())
    groups, refill = refill.take()
    stores = tuple({id(g.frames): g.frames for g in groups}.values())
    return Gathered(fresh, [e for g in groups for e in g.episodes], FramesOf(stores), refill, before)


def frames_seen(groups: Iterable[Group]) -> dict[str, PngFrames]:
    """Digest of every frame in the training rows of `groups`, and a store that has it."""
    return {sha: g.frames for g in groups for e in g.episodes for r in e.rows for sha in r.frames}


def save_waiting(folder: Path, refill: Refill[Group] | None, step: int, keep: int = 2) -> None:
    """Keep the groups that wait after update `step`, for `load_waiting`; all but the newest `keep` are removed."""
    if refill is None:
        return
    final = folder / f"waiting-{step:08d}"

    def write(beside: Path) -> None:
        write_episodes(beside, [e for g in refill.waiting for e in g.episodes])
        store = FrameStore(beside / "frames", durable=False)  # published as a whole, which syncs it
        for sha, frames in frames_seen(refill.waiting).items():
            store.put(frames.get_png(sha))

    if not final.exists():
        publish(final, write)
    for old in sorted(folder.glob("waiting-????????"))[:-keep]:
        shutil.rmtree(old)


def forget_waiting(folder: Path, step: int) -> None:
    """Remove the groups that waited after updates later than `step`: a life that was killed before its state was saved
    has left them, and they were not sampled by the weights that this one comes to."""
    for later in folder.glob("waiting-????????"):
        if int(later.name.removeprefix("waiting-")) > step:
            shutil.rmtree(later)


def load_waiting(folder: Path, rl: Rl, step: int, counts: dict[str, int]) -> Refill[Group] | None:
    """The buffer after update `step`, as `save_waiting` left it."""
    refill = start(rl)
    if refill is None:
        return None
    kept = folder / f"waiting-{step:08d}"
    frames = FrameStore(kept / "frames")
    groups: dict[str, list[Episode]] = {}
    for e in read_episodes(kept):
        groups.setdefault(e.group, []).append(e)
    waiting = tuple(Group(tuple(g), frames) for g in groups.values())
    return replace(refill, waiting=waiting, old=len(waiting), counts=Counts(**counts))
