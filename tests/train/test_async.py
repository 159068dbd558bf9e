"""Asynchronous collection in the real loop: bounded staleness, a schedule that can be followed to the bit, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from async_worlds import ASYNC, HEAD, SLOTS, Player, run
from worlds import digest, make_learner, make_policy, run_rl

from guiderail.checkpoints.save import load_state
from guiderail.params_collection import Collection
from guiderail.rollout.schedule import ScheduleError, read_schedule
from guiderail.rollout.workers import ThreadWorker, WorkerError
from guiderail.train.gates import GateError
from guiderail.train.stale import swapped
from guiderail.train.stop import Stopped

SLOW = {"think": 0.15}  # an update outlasts a wave, so that rollouts run ahead


def collection(**changes):
    return ASYNC.model_copy(update={"collection": Collection(**{"mode": "async", **changes})})


def places(schedule):
    return [(t.iteration, t.wave, t.version, t.dropped) for t in schedule.since(0)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run whose rollouts are one update old."""
    work = tmp_path_factory.mktemp("whole")
    return (*run(work, **SLOW), work)


def test_rollouts_run_ahead_by_the_bound_and_no_more(whole):
    _, log, totals, schedule, _ = whole
    assert [(i, w) for i, w, _, _ in places(schedule)] == [(i, i) for i in range(4)]
    ages = [i - v for i, _, v, _ in places(schedule)]
    assert ages[0] == 0 and max(ages) == 1
    for i, row in log.rows.items():
        assert row[f"staleness/{ages[i]}"] == 8 and row["staleness_mean"] == ages[i]
        assert row["staleness/0"] + row["staleness/1"] == 8
        assert row["logprob_gap_max"] < 1e-4  # old rows too were compared, with the weights that sampled them
        assert all(0 <= row[f"idle_{who}"] <= 1 for who in ("trainer", "engine", "env"))
        assert row["waves_dropped"] == row["worker_restarts"] == 0
    assert totals.iterations == 4 and totals.episodes == 32 and len(totals.trained_on) == 8


def test_without_staleness_it_is_the_synchronous_run(tmp_path):
    rl = collection(max_staleness=0)
    found, log, totals, schedule = run(tmp_path / "a", rl)
    assert [i - v for i, _, v, _ in places(schedule)] == [0] * 4
    sync, plain, sums, _ = run_rl(tmp_path / "b", rl)
    assert found == sync and totals.trained_on == sums.trained_on
    assert [log.rows[i]["loss"] for i in range(4)] == [plain.rows[i]["loss"] for i in range(4)]


def test_a_schedule_is_followed_to_the_bit(tmp_path, whole):
    """Though the machine now has other speeds: the worker is the slow one."""
    plan = read_schedule(whole[4] / "schedule.jsonl", 0, HEAD)
    again, log, _, schedule = run(tmp_path, pace=lambda wave: 0.1, replay=plan)
    assert again == whole[0] and schedule.since(0) == plan
    assert [log.rows[i]["loss"] for i in range(4)] == [whole[1].rows[i]["loss"] for i in range(4)]
    free, *_ = run(tmp_path / "free", pace=lambda wave: 0.0, think=lambda i: 0.3 * (i == 1))
    other = read_schedule(tmp_path / "free" / "schedule.jsonl", 0, HEAD)
    assert (free == whole[0]) == ([t.version for t in other] == [t.version for t in plan])


def test_two_workers_share_the_screens_and_overtake(tmp_path):
    """Wave 1 is slow, others pass it; it is too old by then, dropped, counted, and dropped again by who follows."""
    rl, Player.most_in_use = collection(workers=2), 0
    found, log, _, schedule = run(tmp_path / "a", rl, pace=lambda wave: 0.8 * (wave == 1), think=0.05)
    assert 0 < Player.most_in_use <= SLOTS
    assert {t.slots for t in schedule.since(0)} == {SLOTS // 2}
    late = [t for t in schedule.since(0) if t.wave == 1]
    taken = [t for t in schedule.since(0) if not t.dropped]
    assert all(0 <= t.iteration - t.version <= 1 for t in taken) and len(taken) == 4
    assert sum(r["waves_dropped"] for r in log.rows.values()) == sum(t.dropped for t in late)
    plan = schedule.since(0)
    again, log2, _, schedule2 = run(tmp_path / "b", rl, replay=plan)
    assert again == found and schedule2.since(0) == plan
    assert [r["waves_dropped"] for r in log2.rows.values()] == [r["waves_dropped"] for r in log.rows.values()]


@pytest.mark.parametrize("save_every", [1, 2])
def test_killed_and_resumed_is_bitwise_the_same(tmp_path, whole, save_every):
    """What was recorded of the life that ended is followed; so the run is the one that was never killed."""
    rl = ASYNC.model_copy(update={"save_every": save_every})
    (tmp_path / "schedule.jsonl").write_text((whole[4] / "schedule.jsonl").read_text())

    def fail(iteration):
        if iteration == 3:
            raise RuntimeError("killed")

    plan = read_schedule(whole[4] / "schedule.jsonl", 0, HEAD)
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path, rl, before=fail, replay=plan)
    assert load_state(tmp_path).step == 3 - 3 % save_every
    again, *_, schedule = run(tmp_path, rl, **SLOW)
    assert again == whole[0] and schedule.since(0) == plan


def test_sigkill_and_on(tmp_path):
    """kill -9 in iteration 2, no schedule but what the first life wrote: it is kept to, and the whole can be
    followed."""
    command = [sys.executable, str(Path(__file__).with_name("async_worlds.py")), str(tmp_path), "2", str(SLOW["think"])]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = read_schedule(tmp_path / "schedule.jsonl", 0, HEAD)
    assert [t.iteration for t in before] == [0, 1, 2] and load_state(tmp_path).step == 2
    found, *_ = run(tmp_path)
    plan = read_schedule(tmp_path / "schedule.jsonl", 0, HEAD)
    assert plan[:3] == before and [t.iteration for t in plan] == list(range(4))
    assert run(tmp_path / "again", replay=plan)[0] == found


def test_a_signal_while_waiting_stops_at_once(tmp_path):
    def stop(wave):
        if wave == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            return 60.0
        return 0.0

    started = time.monotonic()
    with pytest.raises(Stopped):
        run(tmp_path, pace=stop)
    assert time.monotonic() - started < 20 and load_state(tmp_path).step >= 1


def test_what_a_worker_raises_is_told_and_ends_the_run(tmp_path):
    def fail(wave):
        if wave == 1:
            raise MemoryError("no room")
        return 0.0

    with pytest.raises(WorkerError, match=r"wave 1 \(weights \d\): MemoryError: no room"):
        run(tmp_path, pace=fail)


def test_rollouts_of_other_weights_are_refused_though_they_are_old(tmp_path):
    class Wrong(Player):
        def __call__(self, order, check=lambda: None):
            if order.wave == 1:
                self.policy = make_policy(seed=1)
                self.world.policy = self.world.engine.policy = self.policy
            return super().__call__(order, check)

    with pytest.raises(GateError, match="sampled token"):
        run(tmp_path, make=lambda k: ThreadWorker(Wrong(ASYNC)), **SLOW)


def test_the_filter_never_trains_on_leftovers_that_are_too_old(tmp_path):
    rl = collection(max_staleness=1).model_copy(update={"groups": 3, "group_size": 2, "filter_rounds": 3})
    found, log, totals, schedule = run(tmp_path / "a", rl, think=0.1)
    c = totals.sampling
    assert c["generated"] == c["dropped"] + c["used"] + log.rows[3]["groups_waiting"]
    assert sum(r.get("groups_expired", 0.0) for r in log.rows.values()) == c["expired"]
    for row in log.rows.values():
        assert row["staleness/0"] + row["staleness/1"] == 2 * row["groups_used"]  # none is older
    assert run(tmp_path / "b", rl, replay=schedule.since(0))[0] == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan[:3], "ends before round 0 of iteration 3"),
        (lambda plan: plan[:2] + plan[3:], "goes on with round 0 of iteration 3"),
        (lambda plan: [plan[0].__class__(**{**vars(t), "digest": "0" * 64}) for t in plan], "has other episodes"),
        (lambda plan: [plan[0].__class__(**{**vars(t), "slots": 99}) for t in plan], "raise env.slots"),
    ],
)
def test_a_schedule_of_something_else_is_refused(tmp_path, whole, change, words):
    plan = change(read_schedule(whole[4] / "schedule.jsonl", 0, HEAD))
    with pytest.raises(ScheduleError, match=words):
        run(tmp_path, replay=plan)


def test_versions_kept_are_those_that_may_be_asked_for(tmp_path, whole):
    assert sorted(f.stem for f in (whole[4] / "versions").iterdir()) == ["00000002", "00000003", "00000004"]
    rl = ASYNC.model_copy(update={"save_every": 4})

    def look(iteration):
        if iteration == 3:
            found.extend(sorted(int(f.stem) for f in (tmp_path / "versions").glob("????????.safetensors")))

    found: list[int] = []
    run(tmp_path, rl, before=look)
    assert found == [0, 2, 3]  # 0: a resumed run would begin there


def test_the_weights_in_training_are_untouched_by_the_gate_on_old_rows(tmp_path):
    learner = make_learner(make_policy(), ASYNC)
    was = digest(learner.named)
    with pytest.raises(KeyError), swapped(learner, {next(iter(learner.named)): torch.ones(1)}):
        pass
    assert digest(learner.named) == was
