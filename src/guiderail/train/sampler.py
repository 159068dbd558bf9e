"""How the weights in training write rollouts: in this process, or on a vLLM server that is handed each version.

Guarantees: an engine from `sampling` samples with the learner's weights as they stand when the block is entered, until
it is left. Knows nothing of episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from guiderail.models.frames import FrameStore
from guiderail.params import Model
from guiderail.params_engine import Engine as EngineParams
from guiderail.params_train import Rl
from guiderail.rollout.engines.base import Engine
from guiderail.rollout.engines.hf import HfEngine
from guiderail.rollout.engines.vllm import VllmEngine
from guiderail.rollout.engines.vllm_client import VllmClient
from guiderail.rollout.engines.vllm_server import vllm_server
from guiderail.rollout.engines.vllm_weights import WeightSync
from guiderail.train.optim import folded
from guiderail.train.start import Start


class Sampler(Protocol):
    """Gives an engine of the weights in training."""

    def sampling(self, frames: FrameStore, version: int) -> AbstractContextManager[Engine]:
        """An engine for the length of the block. version: number of the weights, which change only with it."""
        ...


@dataclass(frozen=True)
class HfSampler:
    """The policy samples itself, adapters folded in."""

    opened: Start

    @contextmanager
    def sampling(self, frames: FrameStore, version: int) -> Iterator[Engine]:
        """See `Sampler`."""
        with folded(self.opened.policy.model):
            yield HfEngine(self.opened.policy, frames)


@dataclass(frozen=True)
class VllmSampler:
    """A server samples; it gets the learner's tensors (or `weights`) when the version changes."""

    opened: Start
    client: VllmClient
    sync: WeightSync
    at_once: int
    weights: Mapping[str, Tensor] | None = None

    @contextmanager
    def sampling(self, frames: FrameStore, version: int) -> Iterator[Engine]:
        """See `Sampler`."""
        weights = self.opened.learner.weights() if self.weights is None else self.weights
        name = self.sync.publish(str(version), weights)
        yield VllmEngine(
            self.client, self.opened.policy, frames, model=name, version=str(version), at_once=self.at_once
        )


@contextmanager
def open_sampler(
    engine: EngineParams, opened: Start, rl: Rl, model: Model, *, images: int, work: Path, url: str = ""
) -> Iterator[Sampler]:
    """The sampler that `engine.kind` names; a server is started unless `url` or `engine.url` names one.

    images: most per prompt. work: for the server's log and the versions handed to it. Raises InputError, ServiceError,
    VllmError.
    """
    if engine.kind == "hf":
        yield HfSampler(opened)
        return
    rank = rl.lora.r if rl.mode == "lora" else 0
    with vllm_server(
        engine,
        opened.parent,
        work / "vllm",
        dtype=model.dtype,
        images=images,
        rank=rank,
        url=url,
        log=work / "vllm.log",
    ) as client:
        sync = WeightSync(client, opened.parent, work / "vllm" / "versions", rl.mode, rl.lora)
        yield VllmSampler(opened, client, sync, engine.max_seqs)
