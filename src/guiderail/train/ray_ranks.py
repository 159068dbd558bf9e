"""What each process of a Ray Train worker group does: open the start, shard it, run the RL loop of `train.rl`.

Guarantees: all processes walk through the loop over the same episodes, which the stage's process collects for them;
only the first tells the stage of curves and records. A group that replaces a lost one goes on from the last state in
the attempt folder. What must not be tried again (a refused row, damaged input) ends the training with its reason;
whatever else happens ends the process with its error, and Ray Train decides.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist

from guiderail.cluster.desk import Abandoned, Line
from guiderail.errors import Explained
from guiderail.models.frames import FrameStore
from guiderail.params import Model
from guiderail.params_train import Rl
from guiderail.rollout.types import Episode
from guiderail.tasks.types import TaskSpec
from guiderail.train import rl as loop
from guiderail.train.distributed import Ranks, ShardedLearner, ShardedPolicy, process_mesh, sharded, sharded_learner
from guiderail.train.ray_sampler import Weights
from guiderail.train.start import load_reference, open_start
from guiderail.train.stop import Stopped


@dataclass(frozen=True)
class Job:
    """What to train. Paths are as the stage sees them, from its working directory `cwd`, which all nodes must see."""

    cwd: str
    start: str
    model: Model
    phases: tuple[Rl, ...]
    seed: int
    work: str

    def folder(self, phase: int) -> Path:
        """Attempt folder of a phase."""
        return Path(self.work) / f"phase{phase}" if len(self.phases) > 1 else Path(self.work)


def train_rank(config: dict[str, Any]) -> None:
    """The train function of `ray.train.torch.TorchTrainer`; config: job and desk."""
    job: Job = config["job"]
    os.chdir(job.cwd)
    group = [uuid.uuid4().hex]
    dist.broadcast_object_list(group, src=0)
    line = Line(config["desk"], group[0], dist.get_rank())
    try:
        run_phases(job, line)
    except (Abandoned, Stopped):  # the stage knows why
        return
    except Explained as e:
        with suppress(Abandoned):
            line.report("refused", (type(e).__name__, str(e)))


def run_phases(job: Job, line: Line) -> None:
    """Train one phase after the other, each with its own optimiser, from the weights the one before left."""
    torch.set_num_threads(job.model.threads)
    opened = open_start(Path(job.start), job.model, job.phases[0], job.seed, Path(job.work))
    device = opened.policy.device
    team, mesh = Ranks(device), process_mesh(device)
    shards = sharded(opened.policy, mesh)
    reference: ShardedPolicy | None = None
    if any(rl.kl_coef > 0 for rl in job.phases):
        reference = sharded(load_reference(Path(job.start), job.model), mesh)
    for phase, rl in enumerate(job.phases):
        learner = sharded_learner(shards, rl, opened.learner)
        loop.train(
            shards,
            learner,
            StageRollouts(line, phase, learner),
            rl,
            seed=job.seed,
            work=job.folder(phase),
            log=StageLog(line, phase),
            reference=reference if rl.kl_coef > 0 else None,
            on_start=lambda done, n=phase: line.alone("begin", (n, done)),  # type: ignore[misc]
            on_iteration=lambda i, m, n=phase: line.alone("iteration", (n, i, m)),  # type: ignore[misc]
            on_scored=lambda i, rows, n=phase: line.alone("scored", (n, i, rows)),  # type: ignore[misc]
            team=team,
        )


@dataclass(frozen=True)
class StageLog:
    """Curves, told to the stage by the first process; a row is written when `log` returns."""

    line: Line
    phase: int

    def log(self, metrics: dict[str, float], step: int) -> None:
        """One row."""
        self.line.alone("log", (self.phase, metrics, step))

    def rewind(self, step: int) -> None:
        """Forget rows at or after `step`."""
        self.line.alone("rewind", (self.phase, step))


class StageRollouts:
    """Episodes that the stage collects with the weights of this moment, in all processes (`refill.Rollouts`)."""

    def __init__(self, line: Line, phase: int, learner: ShardedLearner) -> None:
        self.line, self.phase, self.learner = line, phase, learner
        self.weights: tuple[int, Weights | None] = (-1, None)

    def tasks(self, iteration: int, round: int = 0) -> list[TaskSpec]:
        """None: the stage draws them."""
        return []

    def collect(self, tasks: list[TaskSpec], iteration: int, round: int = 0) -> tuple[list[Episode], FrameStore]:
        """Hand the weights over, wait for the episodes. Raises Stopped when the stage was told to stop."""
        if self.weights[0] != iteration:  # they change between iterations alone
            tensors = self.learner.whole(keep=self.line.rank == 0)
            name = f"{self.line.group}/{self.phase}/{iteration}"
            self.weights = (iteration, Weights(name, ray.put(tensors)) if self.line.rank == 0 else None)
        answer = self.line.together("collect", (self.phase, iteration, round, self.weights[1]))
        if isinstance(answer, int):
            raise Stopped(answer)
        episodes, pngs = ray.get(answer[0])
        dist.barrier()  # no process is ever more than one answer behind (see `cluster.desk`)
        frames = FrameStore(None)
        for png in pngs:
            frames.put(png)
        return episodes, frames
