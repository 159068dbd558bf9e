"""The process reward model in Ray actors of its own: `prm_judge.PrmModel` without its weights.

Guarantees: as `PrmModel.signs`; steps are dealt in order, an actor that is lost is replaced and asked again, and each
frame goes to an actor once per collection. Votes are drawn where they were before (`PrmJudge`), so they are the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from guiderail.cluster.crew import Crew, pieces
from guiderail.models.frames import FrameStore
from guiderail.models.loading import load_policy
from guiderail.params import Model
from guiderail.params import Prompt as PromptParams
from guiderail.rewards.prm_judge import Floats, PrmModel
from guiderail.rewards.process import StepContext


class JudgeActor:
    """One process of the process reward model in `folder`."""

    def __init__(self, cwd: str, folder: str, model: Model, prompt: PromptParams, batch: int) -> None:
        os.chdir(cwd)
        torch.set_num_threads(model.threads)
        policy = load_policy(folder, model)
        policy.model.requires_grad_(False)
        self.model = PrmModel(policy, prompt, FrameStore(None), batch)
        self.collection = -1

    def ready(self) -> int:
        """Process id, once the model is there."""
        return os.getpid()

    def signs(self, collection: int, steps: list[StepContext], temperature: float, frames: dict[str, bytes]) -> Floats:
        """See `PrmModel.signs`; frames of another collection are forgotten."""
        if collection != self.collection:
            self.collection, self.model.frames = collection, FrameStore(None)
        store = self.model.frames
        assert isinstance(store, FrameStore)
        for png in frames.values():
            store.put(png)
        return self.model.signs(steps, temperature)


class RemoteSigns:
    """What `PrmJudge` needs of a model, from all actors of `crew`. Set `frames` before each collection."""

    def __init__(self, crew: Crew, batch: int) -> None:
        self.crew, self.batch = crew, batch * len(crew.actors)
        self._frames, self.collection = FrameStore(None), 0
        self.known: list[set[str]] = [set() for _ in crew.actors]

    @property
    def frames(self) -> FrameStore:
        """Those of the collection."""
        return self._frames

    @frames.setter
    def frames(self, frames: FrameStore) -> None:
        self._frames, self.collection = frames, self.collection + 1
        self.known = [set() for _ in self.crew.actors]

    def signs(self, steps: Sequence[StepContext], temperature: float = 1.0) -> Floats:
        """See `PrmModel.signs`."""

        def ask(actor: Any, index: int, piece: list[StepContext]) -> Any:
            if self.crew.fresh[index]:
                self.known[index] = set()
            wanted = {sha for s in piece for sha in (s.before, s.after)} - self.known[index]
            self.known[index] |= wanted
            frames = {sha: self._frames.get_png(sha) for sha in sorted(wanted)}
            return actor.signs.remote(self.collection, piece, temperature, frames)

        found = self.crew.run(pieces(steps, len(self.crew.actors)), ask)
        return np.concatenate([np.zeros((0, 2)), *found])
