"""Processes of one group that train the world of `worlds.py` together, over gloo.

`python rank_run.py RANK WORLD PORT WORK JOBS`: JOBS is a JSON list of [name, folder, iterations to run]; what each saw
is printed by the first process as one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from worlds import RL, MemoryLog, World, make_learner, make_policy

from guiderail.train import rl as loop
from guiderail.train.batch import make_batch
from guiderail.train.distributed import Ranks, process_mesh, sharded, sharded_learner
from guiderail.train.stop import Stopped


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


def gradients(mesh, rl, train_vision=False):
    """Gradient of one update, whole, and what the update says."""
    policy, learner = opened(mesh, rl, train_vision)
    world = World(make_policy(), rl)
    batch = make_batch(world.collect(world.tasks(0), 0)[0], rl)
    team, kept = Ranks(torch.device("cpu")), {}
    reference = sharded(make_policy(), mesh)
    reference.model.requires_grad_(False)
    clip = learner.clip_gradients

    def keep() -> float:
        norm = clip()
        kept.update({n: x.grad.full_tensor() if hasattr(x.grad, "full_tensor") else x.grad for n, x in learner.named.items()})
        return norm

    learner.clip_gradients = keep
    scored = loop.score(policy, batch, world.frames, rl, reference, team=team)
    told = loop.update(policy, learner, batch, list(range(len(batch.rows))), scored, world.frames, rl, 1e-3, team)
    return {n: g.clone() for n, g in kept.items()}, told, learner.whole(keep=True)


if __name__ == "__main__":
    rank, size, port, work, jobs = sys.argv[1:]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": size}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = process_mesh(torch.device("cpu"))
    found = {}
    for kind, name, options in json.loads(jobs):
        rl = RL.model_copy(update=options["rl"])
        if kind == "gradients":
            made, told, after = gradients(mesh, rl, options.get("train_vision", False))
            if rank == "0":
                torch.save({"grads": made, "after": after}, Path(work) / f"{name}-{size}.pt")
            found[name] = told
        else:
            policy, learner = opened(mesh, rl)
            log = MemoryLog()
            try:
                loop.train(
                    policy, learner, Copied(learner, rl, options["end"]), rl, seed=0, work=Path(work) / name, log=log,
                    team=Ranks(torch.device("cpu")),
                )  # fmt: skip
            except Stopped:
                pass
            found[name] = {i: {k: row.get(k) for k in ("loss", "success", "grad_norm", "entropy")} for i, row in log.rows.items()}
    if rank == "0":
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
