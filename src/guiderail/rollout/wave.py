"""A wave: the rollouts of one round of tasks, sampled by one version of the weights, as it travels between processes.

Guarantees: `read_wave` gives back the episodes, frames and vision features that `write_wave` was given, to the bit; a
folder under its final name is whole as long as the machine does not crash (not fsynced: a wave can be made again). The
digest of a wave is over what was sampled, not over times. Nothing is pickled. Waves without features need no torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from guiderail.models.frames import FrameStore
from guiderail.rollout.store import read_episodes, write_episodes
from guiderail.rollout.types import Episode

if TYPE_CHECKING:
    from guiderail.models.features import Features

FRAMES = pa.schema({"sha": pa.string(), "png": pa.binary()})


class Pngs(Protocol):
    """Where the frames of a wave are."""

    def get_png(self, sha: str) -> bytes:
        """PNG bytes of a frame."""
        ...


@dataclass(frozen=True)
class Order:
    """What a worker is told: play wave number `wave` on `slots` screens with version `version` of the weights, which
    are in the file `weights` (safetensors by parameter name)."""

    wave: int
    version: int
    slots: int
    weights: Path


@dataclass(frozen=True)
class Cost:
    """Seconds of a wave: by the clock, inside the engine, and of all screens together inside actions."""

    seconds: float = 0.0
    policy: float = 0.0
    env: float = 0.0


@dataclass(frozen=True)
class Wave:
    """A wave that was played. vision: hash of the vision weights that made `features` (by frame); both empty when the
    trainer is to make its own."""

    order: Order
    episodes: list[Episode]
    frames: FrameStore
    cost: Cost
    vision: str = ""
    features: Mapping[str, Features] = field(default_factory=dict)


def shown(episodes: Iterable[Episode]) -> list[str]:
    """Frames that the rows, the steps and the ends of episodes name, each once, sorted."""
    found = {s for e in episodes for r in e.rows for s in r.frames}
    found |= {s.frame for e in episodes for s in e.steps} | {e.last_frame for e in episodes if e.last_frame}
    return sorted(found)


def digest(episodes: Sequence[Episode]) -> str:
    """sha256 over ids, outcomes, sampled tokens, log-probs and votes of the episodes, in order."""
    h = hashlib.sha256()
    for e in episodes:
        h.update(json.dumps([e.id, e.outcome.kind, e.outcome.reward, len(e.steps), len(e.rows)]).encode())
        for s in e.steps:
            told = [s.step, s.frame, s.votes, s.votes_invalid, s.reward, s.matched, s.policy_version]
            h.update(json.dumps([*told, s.completion.ids]).encode())
            h.update(np.asarray(s.completion.logprobs, dtype="<f8").tobytes())
        for r in e.rows:
            h.update(r.ids.astype("<i8").tobytes() + r.logprobs.astype("<f4").tobytes())
    return h.hexdigest()


def write_wave(final: Path, wave: Wave) -> None:
    """Write beside, rename to `final` (which must not exist)."""
    beside = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    write_episodes(beside, wave.episodes)
    rows = [{"sha": s, "png": wave.frames.get_png(s)} for s in shown(wave.episodes) if s in wave.frames]
    pq.write_table(pa.Table.from_pylist(rows, schema=FRAMES), beside / "frames.parquet", compression="none")
    grids = {s: list(f.grid) for s, f in wave.features.items()}
    if wave.features:
        from guiderail.checkpoints.tensors import write_tensors

        tensors = {s: f.data.contiguous().cpu() for s, f in wave.features.items()}
        write_tensors(tensors, beside / "features.safetensors")
    head = {"order": asdict(wave.order) | {"weights": str(wave.order.weights)}, "cost": asdict(wave.cost)}
    (beside / "wave.json").write_text(json.dumps(head | {"vision": wave.vision, "grids": grids}))
    beside.rename(final)


def read_wave(folder: Path) -> Wave:
    """The wave in `folder`. Its frames are in memory, so the folder may go."""
    head = json.loads((folder / "wave.json").read_text())
    frames = FrameStore(None)
    for row in pq.read_table(folder / "frames.parquet").to_pylist():
        frames.put(row["png"])
    features = {}
    if head["grids"]:
        from guiderail.checkpoints.tensors import read_tensors
        from guiderail.models.features import Features

        data = read_tensors(folder / "features.safetensors")
        features = {s: Features(data[s], (g[0], g[1], g[2])) for s, g in head["grids"].items()}
    order = Order(**head["order"] | {"weights": Path(head["order"]["weights"])})
    return Wave(order, read_episodes(folder), frames, Cost(**head["cost"]), head["vision"], features)
