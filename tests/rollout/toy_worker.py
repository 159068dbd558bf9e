"""A worker process for tests: `python toy_worker.py FOLDER`. Wave 1 kills it with SIGKILL the first time (a file in
FOLDER's parent remembers), wave 2 raises, wave 3 takes a minute; others hold one episode."""

import os
import signal
import sys
import time
from pathlib import Path

from guiderail.envs.types import Outcome
from guiderail.models.frames import FrameStore
from guiderail.rollout.types import Episode
from guiderail.rollout.wave import Cost, Order, Wave
from guiderail.rollout.workers import attend
from guiderail.tasks.types import TaskSpec


def episode(order: Order) -> Episode:
    task = TaskSpec("toy", "t", order.wave)
    return Episode(f"{order.wave}", f"{order.wave}", 0, 0, task, "go", Outcome("infra_error", "crash"), ())


def play(order: Order) -> Wave:
    folder = Path(sys.argv[1])
    mark = folder.parent / "died"
    if order.wave == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if order.wave == 2:
        raise ValueError("no such task")
    time.sleep(60 * (order.wave == 3))
    return Wave(order, [episode(order)], FrameStore(None), Cost(1.0, 0.5, 0.25))


if __name__ == "__main__":
    print("a word of the worker", flush=True)
    attend(Path(sys.argv[1]), play)
