"""The stage's side of training on Ray: Ray Train runs the learner's processes, the stage answers their questions.

Guarantees: rollouts, records and curves are made in the stage's process, by the same code as without Ray. A lost
process of the learner: Ray Train starts the group again, at most `trainer.restarts` times, and it goes on from the last
state; after that, and for every error of ours, the stage ends with the cause. SIGTERM and Ctrl-C end collecting at
once, or training at the next collection, with the state saved.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from guiderail.cluster.desk import serve, start_desk
from guiderail.errors import Explained
from guiderail.params_trainer import Trainer
from guiderail.rollout.types import Episode
from guiderail.train.metrics import Log
from guiderail.train.ray_ranks import Job, train_rank
from guiderail.train.ray_sampler import RaySampler, Weights
from guiderail.train.refill import PngFrames, Rollouts
from guiderail.train.stop import Stop, Stopped

PATIENCE_S = 10.0


class LearnerLost(Explained, RuntimeError):
    """The learner's processes ended before their work was done; the message tells how and what to do."""


class Refused(Explained, RuntimeError):
    """The learner's processes refused to go on; the message is theirs."""


@dataclass(frozen=True)
class Phase:
    """What the stage does for one phase of the training."""

    rollouts: Rollouts
    log: Log
    on_start: Callable[[int], None] = lambda done: None
    on_iteration: Callable[[int, dict[str, float]], None] = lambda i, m: None
    on_scored: Callable[[int, list[dict[str, Any]]], None] = lambda i, rows: None


def train_on_ray(trainer: Trainer, job: Job, phases: Sequence[Phase], sampler: RaySampler) -> None:
    """Train `job`; its states are left in the attempt folder. Raises LearnerLost, Refused, Stopped, and what
    collecting raises."""
    desk = start_desk()
    fitting = _Fitting(trainer, job, desk)
    begun, stopped = False, list[Stopped]()

    with Stop() as stop:

        def collect(asked: tuple[int, int, int, Weights]) -> Any:
            nonlocal begun
            phase, iteration, round, sampler.weights = asked
            begun = True
            source = phases[phase].rollouts
            try:
                with stop.interruptible():
                    episodes, frames = source.collect(source.tasks(iteration, round), iteration, round)
            except Stopped as e:
                stopped.append(e)
                return stop.signum
            return [ray.put((episodes, pngs_of(episodes, frames)))]

        def ended() -> bool:
            if stop.signum is not None and not begun:
                raise Stopped(stop.signum)
            return not fitting.is_alive()

        def refused(asked: tuple[str, str]) -> None:
            raise Refused(asked[1])

        handlers: dict[str, Callable[[Any], Any]] = {
            "collect": collect,
            "refused": refused,
            "log": lambda x: phases[x[0]].log.log(x[1], x[2]),
            "rewind": lambda x: phases[x[0]].log.rewind(x[1]),
            "begin": lambda x: phases[x[0]].on_start(x[1]),
            "iteration": lambda x: phases[x[0]].on_iteration(x[1], x[2]),
            "scored": lambda x: phases[x[0]].on_scored(x[1], x[2]),
        }
        fitting.start()
        try:
            serve(desk, handlers, ended)
        except BaseException:
            fitting.join(PATIENCE_S)  # the trainers are told; left alone, Ray would tear them down in the middle
            raise
        if stopped:
            raise stopped[0]
        fitting.check()
        stop.check()


def pngs_of(episodes: Iterable[Episode], frames: PngFrames) -> list[bytes]:
    """PNG bytes of every frame that a training row of `episodes` shows, each once."""
    shas = {sha for e in episodes for r in e.rows for sha in r.frames}
    return [frames.get_png(sha) for sha in sorted(shas)]


class _Fitting(threading.Thread):
    """Ray Train at work; in a thread, so that signals reach the stage and not Ray Train's own handler."""

    def __init__(self, trainer: Trainer, job: Job, desk: Any) -> None:
        super().__init__(name="ray-train", daemon=True)
        self.trainer, self.job, self.desk = trainer, job, desk
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until the processes have ended."""
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        logging.getLogger("ray.train").setLevel(logging.WARNING)
        t = self.trainer
        try:
            TorchTrainer(
                train_rank,
                train_loop_config={"job": self.job, "desk": self.desk},
                scaling_config=ScalingConfig(num_workers=t.actor, use_gpu=bool(t.gpus)),
                run_config=RunConfig(
                    name="ray-train",
                    storage_path=str(Path(self.job.work).absolute()),
                    failure_config=FailureConfig(max_failures=t.restarts),
                ),
                torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if t.gpus else "gloo"),
            ).fit()
        except BaseException as e:
            self.error = e

    def check(self) -> None:
        """Raise LearnerLost if they did not end well."""
        if self.error is not None:
            raise LearnerLost(
                f"the learner's processes were lost more than trainer.restarts = {self.trainer.restarts} times: "
                f"{_shown(self.error)}\nRun the same command again to go on from the last checkpoint."
            ) from self.error


def _shown(error: BaseException) -> str:
    """The end of an error's text: Ray puts the cause there."""
    text = str(error).strip()
    return text if len(text) < 2000 else "..." + text[-2000:]
