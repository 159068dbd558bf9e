"""Waves on disk, worker processes that die, schedules that are torn, and what may be begun when."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from toy_worker import episode

from guiderail.envs.types import Outcome
from guiderail.models.features import Features
from guiderail.models.frames import FrameStore
from guiderail.models.rows import ChunkRow
from guiderail.rollout.producer import Producer
from guiderail.rollout.schedule import Schedule, ScheduleError, Taken, read_schedule
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.rollout.versions import Versions
from guiderail.rollout.wave import Cost, Order, Wave, digest, read_wave, write_wave
from guiderail.rollout.workers import ProcessWorker, WorkerDied, WorkerError
from guiderail.tasks.types import TaskSpec

WEIGHTS = {"w": torch.arange(3.0)}
HEAD = {"phase": 0, "seed": 0}


def process(tmp_path) -> ProcessWorker:
    command = [sys.executable, str(Path(__file__).with_name("toy_worker.py")), str(tmp_path / "w")]
    return ProcessWorker(command, tmp_path / "w", "toy worker")


def wait(worker, seconds=60.0):
    end = time.monotonic() + seconds
    while (read := worker.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return read()


class Fake:
    """Plays what the test says is done: `finished` waves. Remembers its orders."""

    def __init__(self) -> None:
        self.orders, self.finished, self.now = [], set(), None

    def start(self, order):
        assert self.now is None
        self.orders.append(order)
        self.now = order

    def poll(self):
        if self.now is None or self.now.wave not in self.finished:
            return None
        order, self.now = self.now, None
        return lambda: Wave(order, [episode(order)], FrameStore(None), Cost())

    def close(self):
        pass


def producer(tmp_path, fakes, **changes):
    options = {"workers": len(fakes), "slots": 8, "iterations": 9, "max_staleness": 1, "restarts": 0} | changes
    return Producer(
        lambda k: fakes[k],
        versions=Versions(tmp_path / "versions"),
        schedule=Schedule(tmp_path / "schedule.jsonl", HEAD),
        **options,
    )


def settled(fakes, wanted):
    """The (wave, version) of all orders so far, once they are `wanted` (or a second has passed)."""
    end = time.monotonic() + (5.0 if wanted else 0.3)
    found = None
    while time.monotonic() < end:
        found = sorted((o.wave, o.version) for f in fakes for o in f.orders)
        if found == wanted:
            time.sleep(0.06)  # nothing more is begun either
            return sorted((o.wave, o.version) for f in fakes for o in f.orders)
        time.sleep(0.01)
    return found


def test_a_wave_survives_the_disk_to_the_bit(tmp_path):
    png = b"\x89PNG\r\n\x1a\n" + b"x" * 20
    frames = FrameStore(None)
    sha = frames.put(png)
    said = Completion((5, 6), (-0.1234567890123, -1e-9), "stop", "ab")
    step = StepRecord(0, sha, 0, 4, said, SamplingParams(), "t", "{}", "", 3, 0.5, 0.25, (1, -1), 1)
    row = ChunkRow(np.arange(6), (sha,), ((4, 6),), np.array(said.logprobs, np.float32), (0,), 0.7)
    done = Episode(
        "e", "g", 0, 0, TaskSpec("s", "t", 1), "go", Outcome("success", "env_done", 1.0), (step,), (row,), sha
    )
    features = {sha: Features(torch.randn(2, 3, 4), (1, 2, 6))}
    order = Order(7, 3, 4, tmp_path / "v")
    write_wave(tmp_path / "wave", Wave(order, [done], frames, Cost(1.0, 0.5, 0.25), "vision", features))
    found = read_wave(tmp_path / "wave")
    assert found.order == order and found.cost == Cost(1.0, 0.5, 0.25) and found.vision == "vision"
    assert found.frames.get_png(sha) == png
    assert torch.equal(found.features[sha].data, features[sha].data) and found.features[sha].grid == (1, 2, 6)
    assert replace(found.episodes[0], rows=()) == replace(done, rows=())
    assert digest(found.episodes) == digest([done])
    other = replace(step, completion=replace(said, logprobs=(-0.1234567890124, -1e-9)))
    slower = replace(step, seconds_env=9.0)
    assert digest([replace(done, steps=(other,))]) != digest([done]) == digest([replace(done, steps=(slower,))])


def test_a_worker_process_plays_tells_and_dies(tmp_path):
    worker = process(tmp_path)
    try:
        order = Order(0, 0, 1, tmp_path / "v")
        worker.start(order)
        found = wait(worker)
        assert found.order == order and found.episodes[0].task.seed == 0
        worker.start(replace(order, wave=2))
        with pytest.raises(WorkerError, match=r"wave 2 \(weights 0\): ValueError: no such task") as e:
            wait(worker)
        assert not isinstance(e.value, WorkerDied) and "w.log" in str(e.value)
    finally:
        worker.close()
    worker = process(tmp_path)
    worker.start(replace(order, wave=1))
    with pytest.raises(WorkerDied, match=r"died while it played .*wave 1(.|\n)*a word of the worker"):
        wait(worker)
    worker.close()
    worker = process(tmp_path)
    pid = worker._process.pid
    worker.start(replace(order, wave=3))
    worker.close()
    assert not psutil.pid_exists(pid)


def test_weights_stay_while_a_wave_is_played_by_them(tmp_path):
    """However far the trainer is by then: a slow worker, or the one that replaces it, has yet to read them."""
    fake = Fake()
    with producer(tmp_path, [fake]) as p:
        for version in range(5):
            p.publish(version, WEIGHTS)
            p.saved(version)
            assert settled([fake], [(0, 0)]) == [(0, 0)]
        assert p.versions.has(0) and not p.versions.has(1)
        fake.finished = {0}
        assert settled([fake], [(0, 0), (1, 4)]) == [(0, 0), (1, 4)]
        p.publish(5, WEIGHTS)
        assert not p.versions.has(0) and p.versions.has(4)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_worker_that_died_is_replaced_and_its_wave_played_again(tmp_path, restarts):
    made = producer(tmp_path, [None], restarts=restarts, iterations=2)
    made.make = lambda k: process(tmp_path)
    with made:
        made.publish(0, WEIGHTS)
        assert made.collect([], 0)[0][0].id == "0"
        if not restarts:
            with pytest.raises(WorkerDied):
                made.collect([], 1)
            with pytest.raises(WorkerDied):  # and again, for whoever asks
                made.publish(1, WEIGHTS)
            return
        made.publish(1, WEIGHTS)
        assert made.collect([], 1)[0][0].id == "1"
        assert made.metrics([], 1)["worker_restarts"] == 1


def test_what_is_begun_would_never_be_too_old(tmp_path):
    fakes = [Fake(), Fake(), Fake()]
    with producer(tmp_path, fakes, slots=7) as made:
        assert settled(fakes, []) == []  # no weights yet
        made.publish(0, WEIGHTS)
        assert settled(fakes, [(0, 0), (1, 0)]) == [(0, 0), (1, 0)]  # for updates 0 and 1; one for 2 would be too old
        fakes[0].finished = fakes[1].finished = {0, 1}
        made.collect([], 0)
        assert settled(fakes, [(0, 0), (1, 0)]) == [(0, 0), (1, 0)]  # update 0 is being made: still two ahead
        made.publish(1, WEIGHTS)
        assert settled(fakes, [(0, 0), (1, 0), (2, 1)]) == [(0, 0), (1, 0), (2, 1)]
        assert {o.slots for f in fakes for o in f.orders} == {2}  # 7 screens for three
    with pytest.raises(ValueError, match="share 2 screens"):
        producer(tmp_path / "b", fakes, slots=2)


def test_nothing_is_begun_for_updates_beyond_the_last(tmp_path):
    fakes = [Fake(), Fake()]
    with producer(tmp_path, fakes, iterations=1, max_staleness=5) as made:
        made.publish(0, WEIGHTS)
        assert settled(fakes, [(0, 0)]) == [(0, 0)]


def test_an_overtaken_wave_is_dropped_and_counted(tmp_path):
    fakes = [Fake(), Fake()]
    with producer(tmp_path, fakes) as made:
        made.publish(0, WEIGHTS)
        settled(fakes, [(0, 0), (1, 0)])
        slow = next(f for f in fakes if f.now.wave == 0)
        for f in fakes:
            f.finished = {1, 2, 3}
        for i in range(3):  # wave 0 is still at it
            assert made.collect([], i)[0][0].id == str(i + 1)
            made.publish(i + 1, WEIGHTS)
        slow.finished = {0}
        end = time.monotonic() + 10
        while not made.metrics([], 3)["waves_ready"]:
            assert time.monotonic() < end
        for f in fakes:
            f.finished = {0, 4}
        assert made.collect([], 3)[0][0].id == "4"
        assert made.metrics([], 3)["waves_dropped"] == 1
    lines = [(t.iteration, t.wave, t.version, t.dropped) for t in read_schedule(tmp_path / "schedule.jsonl", 0, HEAD)]
    assert lines == [(i, i + 1, i, False) for i in range(3)] + [(3, 0, 0, True), (3, 4, 3, False)]


def test_a_torn_schedule_is_read_up_to_the_tear_and_a_broken_one_refused(tmp_path):
    file = tmp_path / "s.jsonl"
    schedule = Schedule(file, HEAD)
    lines = [Taken(i, 0, i, i, 4, 1, "d") for i in range(3)]
    for t in lines:
        schedule.add(t)
    file.write_text(file.read_text()[:-9])
    assert read_schedule(file, 0, HEAD) == lines[:2]
    again = Schedule(file, HEAD)
    again.add(lines[2])
    assert read_schedule(file, 0, HEAD) == lines == Schedule(file, HEAD).since(0)
    assert Schedule(file, HEAD).since(1) == lines[1:]
    with pytest.raises(ScheduleError, match="seed 0 there and 5 here"):
        read_schedule(file, 0, HEAD | {"seed": 5})
    with pytest.raises(ScheduleError, match="no schedule of phase 1"):
        read_schedule(file, 1, HEAD)
    both = tmp_path / "both.jsonl"
    both.write_text(file.read_text() + json.dumps(HEAD | {"phase": 1}) + "\n" + json.dumps(vars(lines[0])) + "\n")
    assert read_schedule(both, 1, HEAD | {"phase": 1}) == lines[:1] and read_schedule(both, 0, HEAD) == lines
    file.write_text(file.read_text().replace('"wave": 1', '"vawe": 1'))
    with pytest.raises(ScheduleError, match=r"s\.jsonl:3: no line of a schedule"):
        read_schedule(file, 0, HEAD)
    with pytest.raises(ScheduleError, match="no schedule to be read there"):
        read_schedule(tmp_path / "none", 0, HEAD)


def test_a_plan_whose_weights_are_gone_is_left_or_refused(tmp_path):
    fakes = [Fake()]
    plan = [Taken(i, 0, i, max(0, i - 1), 4, 1, "d") for i in range(4)]
    schedule = Schedule(tmp_path / "schedule.jsonl", HEAD)
    for t in plan:
        schedule.add(t)
    with producer(tmp_path, fakes) as made:
        made.publish(3, WEIGHTS)  # wave 3 was played by version 2, which nobody kept: another one takes its place
        assert settled(fakes, [(3, 3)]) == [(3, 3)]
    with producer(tmp_path / "b", [Fake()], replay=plan) as made, pytest.raises(ScheduleError, match="weights 2"):
        made.publish(3, WEIGHTS)
