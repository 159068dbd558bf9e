"""The toy world of `worlds`, played by a producer's workers that hold weights of their own.

Run as a script it trains in that world and kills itself with SIGKILL: `python async_worlds.py <work> <kill after>
<seconds of an update>`.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch
from worlds import RL, MemoryLog, World, die_after, digest, make_learner, make_policy

from guiderail.checkpoints.tensors import read_tensors
from guiderail.models.frames import FrameStore
from guiderail.params_collection import Collection
from guiderail.rollout.producer import Producer
from guiderail.rollout.schedule import Schedule
from guiderail.rollout.versions import Versions
from guiderail.rollout.wave import Cost, Order, Wave, shown
from guiderail.rollout.workers import ThreadWorker
from guiderail.train import rl as rl_loop

ASYNC = RL.model_copy(
    update={"iterations": 4, "groups": 2, "importance_cap": 2.0, "collection": Collection(mode="async"), "epochs": 1}
)
SLOTS = 8
HEAD = {"phase": 0, "seed": 0}
PLAYERS: list = []  # models of players that are done: each order brings its weights, so they may be used again


def fresh(rl):
    policy = make_policy()
    return policy, make_learner(policy, rl)


class Player:
    """Plays waves with a policy of its own; `pace(wave)` seconds each. Counts the screens in use over all players."""

    lock, in_use, most_in_use = threading.Lock(), 0, 0

    def __init__(self, rl, pace=lambda wave: 0.0) -> None:
        self.rl, self.pace = rl, pace
        self.policy, self.learner = PLAYERS.pop() if PLAYERS else fresh(rl)
        self.policy.features.clear()
        self.world = World(self.policy, rl)

    def __call__(self, order: Order, check=lambda: None) -> Wave:
        with Player.lock:
            Player.in_use += order.slots
            Player.most_in_use = max(Player.most_in_use, Player.in_use)
        end = time.monotonic() + self.pace(order.wave)
        while time.monotonic() < end:
            check()
            time.sleep(0.002)
        self.learner.load(read_tensors(order.weights), {})
        tasks = self.world.tasks(*divmod(order.wave, max(1, self.rl.filter_rounds)))
        episodes, numbered = self.world.collect(tasks, order.version)
        frames = FrameStore(None)
        for sha in shown(episodes):
            frames.put(numbered.get_png(sha))
        with Player.lock:
            Player.in_use -= order.slots
        return Wave(order, episodes, frames, Cost(0.1, 0.05, 0.2), *self.policy.features.known(shown(episodes)))


def run(work, rl=ASYNC, *, make=None, pace=lambda wave: 0.0, replay=None, before=lambda i: None, think=0.0, **options):
    """(weights digest, log, totals, schedule) of an asynchronous run in `work`; `think`: seconds an update takes
    longer."""
    (policy, learner), log, players = fresh(rl), MemoryLog(), []
    schedule = Schedule(work / "schedule.jsonl", HEAD)
    make = make or (lambda k: players.append(Player(rl, pace)) or ThreadWorker(players[-1]))
    c = rl.collection

    def on_wave(wave, iteration, round):
        policy.features.adopt(wave.vision, wave.features)
        before(iteration)

    def scored(iteration, rows):
        time.sleep(think(iteration) if callable(think) else think)

    options = {"workers": c.workers, "slots": SLOTS, "restarts": 0} | options
    with Producer(
        make,
        iterations=rl.iterations,
        max_staleness=c.max_staleness,
        versions=Versions(work / "versions"),
        schedule=schedule,
        replay=replay,
        on_wave=on_wave,
        **options,
    ) as producer:
        totals = rl_loop.train(
            policy, learner, producer, rl, seed=0, work=work, log=log, producer=producer, on_scored=scored
        )
    PLAYERS.extend((p.policy, p.learner) for p in players)
    return digest(learner.named), log, totals, schedule


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Path(sys.argv[1]), before=die_after(int(sys.argv[2])), think=float(sys.argv[3]))
