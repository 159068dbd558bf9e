"""Rollouts of the weights in training by Ray actors, each with a whole copy of the policy and an engine of its own.

Guarantees: as `rollout.engines`: what a request gives depends on its prompt, its seed and the weights, never on which
actor it went to (float rounding of another batch shape aside); the weights of a block are those that were handed over
before it; an actor that is lost is replaced, given weights and frames again, and asked again. Each frame goes to an
actor once per collection. Knows nothing of episodes: the stage's process plays them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from guiderail.cluster.crew import Crew, pieces
from guiderail.models.frames import FrameStore
from guiderail.models.rows import Prompt
from guiderail.params import Model
from guiderail.params_engine import Engine as EngineParams
from guiderail.params_train import Rl
from guiderail.rollout.types import Completion, SamplingParams
from guiderail.train.sampler import open_sampler
from guiderail.train.start import open_start


@dataclass(frozen=True)
class Weights:
    """Trained tensors in Ray's store, under a name that no others have."""

    name: str
    tensors: Any


class EngineActor:
    """One rollout process: opens the start, takes weights, generates."""

    def __init__(
        self, cwd: str, start: str, model: Model, rl: Rl, engine: EngineParams, images: int, work: str, seed: int
    ) -> None:
        os.chdir(cwd)
        torch.set_num_threads(model.threads)
        own = Path(work) / f"engine-{os.getpid()}"
        served = model if engine.kind == "hf" else model.model_copy(update={"device": "cpu"})
        self.opened = open_start(Path(start), served, rl, seed, Path(work))
        self.opened.policy.model.requires_grad_(False)
        self.sampler = ExitStack().enter_context(open_sampler(engine, self.opened, rl, model, images=images, work=own))
        self.name, self.version = "", 0
        self.frames = FrameStore(None)
        self.engine: Any = None
        self.block = ExitStack()

    def ready(self) -> int:
        """Process id, once the model is there."""
        return os.getpid()

    def generate(
        self,
        name: str,
        tensors: list[Any],
        prompts: list[Prompt],
        sampling: list[SamplingParams],
        frames: dict[str, bytes],
    ) -> list[Completion]:
        """Completions under the weights `name`; `tensors` holds their reference, `frames` those not sent before."""
        if name != self.name:
            import ray

            self.block.close()
            self.block, self.frames, self.version = ExitStack(), FrameStore(None), self.version + 1
            with torch.inference_mode(False):
                self.opened.learner.load(ray.get(tensors[0]), {})
            self.engine = self.block.enter_context(self.sampler.sampling(self.frames, self.version))
            self.name = name
        for png in frames.values():
            self.frames.put(png)
        found: list[Completion] = self.engine.generate(prompts, sampling)
        return found


class RayEngine:
    """A batch over all actors of `crew`, siblings side by side."""

    def __init__(self, crew: Crew, weights: Weights, frames: FrameStore) -> None:
        self.crew, self.weights, self.frames = crew, weights, frames
        self.known: list[set[str]] = [set() for _ in crew.actors]

    def generate(self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> list[Completion]:
        """See `rollout.engines.base.Engine`."""
        work = pieces(list(zip(prompts, sampling, strict=True)), len(self.crew.actors))

        def ask(actor: Any, index: int, piece: list[tuple[Prompt, SamplingParams]]) -> Any:
            if self.crew.fresh[index]:
                self.known[index] = set()
            wanted = {sha for prompt, _ in piece for sha in prompt.frames} - self.known[index]
            self.known[index] |= wanted
            return actor.generate.remote(
                self.weights.name,
                [self.weights.tensors],
                [p for p, _ in piece],
                [s for _, s in piece],
                {sha: self.frames.get_png(sha) for sha in sorted(wanted)},
            )

        return [c for part in self.crew.run(work, ask) for c in part]


class RaySampler:
    """Gives engines of the weights that were handed over last (`train.sampler.Sampler`)."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.weights: Weights | None = None

    @contextmanager
    def sampling(self, frames: FrameStore, version: int) -> Iterator[RayEngine]:
        """See `Sampler`."""
        if self.weights is None:
            raise AssertionError("no weights were handed over before a collection")
        yield RayEngine(self.crew, self.weights, frames)
