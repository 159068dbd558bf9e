"""A rollout worker's process: `python -m guiderail.stages.rollout_worker SPEC FOLDER`, started by `collection`.

Plays the waves it is ordered to in FOLDER, each with the version of the weights it is told, as the rl stage itself
would between two updates. Has a policy, an engine and a judge of its own; writes no records, curves or checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from guiderail.checkpoints.tensors import read_tensors
from guiderail.params import parse
from guiderail.pool.wire import TOKEN_ENV
from guiderail.rollout.wave import Order, Wave
from guiderail.rollout.workers import attend
from guiderail.stages import paths
from guiderail.stages.context import StageContext
from guiderail.stages.judging import opened_judge
from guiderail.stages.rollouts import PoolRollouts, ReplayRollouts, read_recorded
from guiderail.tasks.splits import load_manifest
from guiderail.tracking import Tracker
from guiderail.train.sampler import HfSampler
from guiderail.train.start import open_start


def main(spec: Path, folder: Path) -> None:
    """Play until killed."""
    told = json.loads(spec.read_text())
    params, axes = parse(told["params"], str(spec)), told["axes"]
    rl, work = params.phases_for(axes["recipe"])[told["phase"]], Path(told["work"])
    tracker = Tracker(folder / "curves.jsonl", enabled=False)
    ctx = StageContext(params, "rl", axes, folder, folder, work, tracker)
    opened = open_start(Path(told["start"]), params.model, rl, ctx.seed, work)
    first, parts = told["first"]
    with ExitStack() as stack:
        rollouts: PoolRollouts | ReplayRollouts
        if told["pool"]:
            judge = stack.enter_context(opened_judge(ctx, rl, paths.prm(axes["recipe"], axes["seed"]) / "judge"))
            pool, tasks = (told["pool"], os.environ[TOKEN_ENV]), load_manifest(paths.tasks_json())
            rollouts = PoolRollouts(ctx, rl, opened.policy, HfSampler(opened), first, parts, pool, tasks, judge)
        else:
            recorded = read_recorded(paths.demos() / "demos.jsonl", paths.demos() / "frames")
            rollouts = ReplayRollouts(ctx, rl, opened.policy, HfSampler(opened), first, parts, recorded)

        def play(order: Order) -> Wave:
            opened.learner.load(read_tensors(order.weights), {})
            return rollouts.wave(order)

        attend(folder, play)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
