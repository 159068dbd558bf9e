"""Processes of one group that train the world of `worlds.py` together, over gloo.

`python rank_run.py RANK WORLD PORT WORK JOBS`: JOBS is a JSON list of [kind, name, options]; what each saw is printed
by the first process as one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from worlds import RL, MemoryLog, World, make_learner, make_policy

from guiderail.train import rl as loop
from guiderail.train.batch import make_batch
from guiderail.train.distributed import Ranks, process_mesh, sharded, sharded_learner
from guiderail.train.stop import Stopped

SMALL = RL.model_copy(update={"iterations": 3, "groups": 2, "epochs": 1, "batch": 4, "micro_batch": 2})
SEEN = ("loss", "success", "grad_norm", "entropy", "rows_kept")


class Copied(World):
    """Samples with a whole copy of the weights in training; stops before iteration `end`."""

    def __init__(self, learner, rl, end: int) -> None:
        self.whole, self.end = make_policy(), end
        self.named = make_learner(self.whole, rl).named
        super().__init__(self.whole, rl)
        self.learner = learner

    def collect(self, tasks, iteration, round=0):
        if iteration == self.end:
            raise Stopped(15)
        with torch.no_grad():
            for n, x in self.learner.whole(keep=True).items():
                self.named[n].copy_(x)
        return super().collect(tasks, iteration, round)


def opened(mesh, rl, train_vision=False):
    """(policy, learner) of the world, sharded."""
    policy = make_policy()
    learner = make_learner(policy, rl, train_vision)
    shards = sharded(policy, mesh)
    return shards, sharded_learner(shards, rl, learner)


def drifted(policy):
    """A reference that is not the policy."""
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.05)
    return policy


def gradients(mesh, rl, train_vision=False):
    """Gradient of one update, whole, and what the update says."""
    policy, learner = opened(mesh, rl, train_vision)
    world = World(make_policy(), rl)
    batch = make_batch(world.collect(world.tasks(0), 0)[0], rl)
    team, kept = Ranks(torch.device("cpu")), {}
    reference = None
    if rl.kl_coef:
        reference = sharded(drifted(make_policy()), mesh)
        reference.model.requires_grad_(False)
    clip = learner.clip_gradients

    def keep() -> float:
        norm = clip()
        for n, x in learner.named.items():
            kept[n] = (x.grad.full_tensor() if hasattr(x.grad, "full_tensor") else x.grad).clone()
        return norm

    learner.clip_gradients = keep
    scored = loop.score(policy, batch, world.frames, rl, reference, team=team)
    told = loop.update(policy, learner, batch, list(range(len(batch.rows))), scored, world.frames, rl, 1e-3, team)
    return kept, told, learner.whole(keep=True)


def run(jobs, work: Path) -> dict:
    """Do `jobs` in the default group."""
    mesh, found = process_mesh(torch.device("cpu")), {}
    for kind, name, options in jobs:
        rl = SMALL.model_copy(update=options["rl"])
        if kind == "gradients":
            grads, told, after = gradients(mesh, rl, options.get("train_vision", False))
            if dist.get_rank() == 0:
                save_file(
                    {f"g.{n}": g for n, g in grads.items()} | {f"w.{n}": w for n, w in after.items()}, work / name
                )
            found[name] = told
            continue
        policy, learner = opened(mesh, rl)
        log, world = MemoryLog(), Copied(learner, rl, options["end"])
        with suppress(Stopped):
            loop.train(policy, learner, world, rl, seed=0, work=work / name, log=log, team=Ranks(torch.device("cpu")))
        found[name] = {i: {k: row.get(k) for k in SEEN} for i, row in log.rows.items()}
    return found


if __name__ == "__main__":
    rank, size, port, work, jobs = sys.argv[1:]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": size}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = run(json.loads(jobs), Path(work))
    if rank == "0":
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
