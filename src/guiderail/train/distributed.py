"""Train one model in several processes: FSDP2 shards, the single-process loop and update over them.

Guarantees: a step of N processes is the step of one: each micro-batch is run by exactly one process with the weights
its tokens have in the whole mini-batch, and gradients are summed (not averaged) over the processes; so losses agree to
rounding whatever N is. Sharded are the language model's blocks, each by itself, and what lies around them (embedding,
norm, head); the vision tower is held whole by every process, since frames are read outside of any block's forward, and
its gradients (with `model.train_vision`) are summed. Runs over gloo on CPUs and NCCL on GPUs. The model is loaded whole
by every process before it is sharded. Not covered: tensor, context or pipeline parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from guiderail import params_train as p
from guiderail.checkpoints.sharded import load_sharded, save_sharded
from guiderail.models.features import Frames
from guiderail.models.logprobs import LogProbs
from guiderail.models.policy import Policy
from guiderail.models.rows import ChunkRow
from guiderail.train.batch import microbatches
from guiderail.train.optim import STATE, Learner
from guiderail.train.team import Part, PerRow


class ShardedPolicy(Policy):
    """A policy whose language model is sharded by `sharded`: only `logprobs` may be asked of it, by all processes
    together, and the library's forward is run (the lean one reads weights, which are elsewhere)."""

    def text(self) -> None:
        """None: see the class."""
        return

    def logprobs(self, rows: Sequence[ChunkRow], frames: Frames, **options: Any) -> LogProbs:
        """See `Policy.logprobs`; weights are gathered for its length."""
        asked = super().logprobs
        found: LogProbs = self.model.gathered(lambda: asked(rows, frames, **options))
        return found


def process_mesh(device: torch.device) -> DeviceMesh:
    """All processes in one row."""
    return init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))


def sharded(policy: Policy, mesh: DeviceMesh) -> ShardedPolicy:
    """Shard the model of `policy` in place, over `mesh`, and give it as a policy that knows. `policy` itself is not to
    be used any more."""
    model = policy.model
    vision = set(model.model.visual.parameters())
    for layer in model.model.language_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=vision, reshard_after_forward=True)
    model.gathered = lambda call: call()
    register_fsdp_forward_method(model, "gathered")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the loss is a sum over processes, not a mean
            module.set_force_sum_reduction_for_comms(True)  # which gloo needs for any other factor than their number
    return ShardedPolicy(model, policy.processor)


def trained_parameters(policy: Policy) -> dict[str, nn.Parameter]:
    """What is trained, by name, as `optim.select_trainable` marked it before the model was sharded."""
    return {n: x for n, x in policy.model.named_parameters() if x.requires_grad}


class ShardedLearner(Learner):
    """AdamW over shards: each process holds and updates its own."""

    @torch.no_grad()
    def clip_gradients(self) -> float:
        """See `Learner`; the norm is that of the whole gradient."""
        for x in self.named.values():
            if not isinstance(x, DTensor):  # held whole: each process has the gradient of its own rows
                x.grad = torch.zeros_like(x) if x.grad is None else x.grad
                dist.all_reduce(x.grad)
        grads = [(_local(x.grad), isinstance(x, DTensor)) for x in self.named.values() if x.grad is not None]
        squares = [torch.zeros(2, dtype=torch.float64)]
        for grad, shard in grads:
            square = torch.linalg.vector_norm(grad, dtype=torch.float32).double().square().cpu()
            squares.append(torch.stack([square, square * 0] if shard else [square * 0, square]))
        of_shards, of_whole = torch.stack(squares).sum(0).tolist()
        (of_shards,) = summed(of_shards, device=next(iter(self.named.values())).device)
        norm = math.sqrt(of_shards + of_whole) if math.isfinite(of_shards + of_whole) else math.nan
        scale = min(1.0, self.clip / (norm + 1e-6)) if math.isfinite(norm) else 1.0
        for grad, _ in grads:
            grad.mul_(scale)
        return norm

    def not_finite(self) -> list[str]:
        """See `Learner`; of this process's shards."""
        return [n for n, x in self.named.items() if x.grad is not None and not torch.isfinite(_local(x.grad)).all()]

    @torch.no_grad()
    def whole(self, keep: bool) -> dict[str, Tensor]:
        """The trained tensors, whole, on CPU; empty unless `keep`. Called by all processes together; holds one tensor
        at a time beside what is kept."""
        found: dict[str, Tensor] = {}
        for n, x in self.named.items():
            full = x.full_tensor() if isinstance(x, DTensor) else x
            if keep:
                found[n] = full.detach().cpu().clone()
        return found

    @torch.no_grad()
    def room(self, saved: set[str]) -> dict[str, dict[str, Tensor]]:
        """Tensors for a saved state to be read into; `saved` names its optimiser tensors. They become the learner's."""
        for n in self.named:
            if f"{n}|step" in saved:
                kept = self.optimizer.state
                fresh = {k: torch.zeros_like(self.moved(n)) for k in STATE if k != "step"}
                kept[self.moved(n)] = {"step": torch.zeros((), dtype=torch.float32), **fresh}
        return {"weights": self.weights(), "optimizer": self.state()}


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def summed(*values: float, device: torch.device) -> tuple[float, ...]:
    """Each value summed over all processes."""
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return tuple(total.tolist())


class Ranks:
    """The team of all processes of the default group (see `team.Team`); `device` is this process's."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.rank, self.size = device, dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0

    def parts(
        self, rows: Sequence[ChunkRow], index: Sequence[int], size: int, layout: p.Layout = "padded"
    ) -> list[Part]:
        """See `Team`; smaller than `size` where that gives every process something to do."""
        return microbatches(rows, index, max(1, min(size, math.ceil(len(index) / self.size))), layout)

    def mine(self, parts: list[Part]) -> Iterator[tuple[Part, bool]]:
        """See `Team`; dealt in turn, so that all processes run parts of about one length at a time."""
        for first in range(0, len(parts), self.size):
            at = first + self.rank
            yield (parts[at], True) if at < len(parts) else (parts[0][:1], False)

    def merged(self, values: PerRow) -> dict[int, Tensor]:
        """See `Team`."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, dict(values))
        return {i: v for each in found for i, v in each.items()}

    def sums(self, *values: float) -> tuple[float, ...]:
        """See `Team`."""
        return summed(*values, device=self.device)

    def counter(self, policy: Policy, frames: Frames) -> Callable[[str], int]:
        """See `Team`; by arithmetic, since each process computes features of its own rows only (and `Policy.pack`
        refuses those that differ)."""

        def count(sha: str) -> int:
            width, height = frames.get(sha).size
            return policy.image_tokens(width, height)

        return count

    def save(self, folder: Path, step: int, learner: Learner, meta: Mapping[str, Any]) -> None:
        """See `Team`."""
        save_sharded(folder, step, {"weights": learner.weights(), "optimizer": learner.state()}, meta)

    def load(self, folder: Path, learner: Learner) -> tuple[int, dict[str, Any]] | None:
        """See `Team`."""
        assert isinstance(learner, ShardedLearner)
        return load_sharded(folder, learner.room)


def sharded_learner(policy: ShardedPolicy, optim: p.Optim, like: Learner) -> ShardedLearner:
    """A learner of the shards of what `like` trained before the model was sharded."""
    named = trained_parameters(policy)
    if named.keys() != like.named.keys():
        raise AssertionError(f"sharding changed what is trained: {sorted(named.keys() ^ like.named.keys())[:5]}")
    return ShardedLearner(named, optim)
