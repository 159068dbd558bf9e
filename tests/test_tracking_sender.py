"""What MLflow refuses for a while is sent again; what is lost is counted and told. Against a store made of Python."""

import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest

from guiderail import tracking_sender
from guiderail.tracking_sender import Sender, short, trouble
from guiderail.tracking_system import SystemMeter


class Store:
    """A run that fails as often as told, then takes everything."""

    def __init__(self, *failures):
        self.failures, self.points, self.ended, self.done = list(failures), [], None, []

    def fail(self):
        if self.failures:
            raise self.failures.pop(0)

    def metrics(self, points):
        self.fail()
        self.points += points

    def end(self, status):
        self.ended = status


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(tracking_sender, "FLUSH_S", 0.02)
    monkeypatch.setattr(tracking_sender, "FIRST_PAUSE_S", 0.01)


def sender(store, close_s=5.0, warned=None):
    return Sender(lambda: store, close_s, False, (warned if warned is not None else []).append)


LOCKED = sqlite3.OperationalError("database is locked")


def test_a_locked_store_loses_nothing():
    store = Store(*[LOCKED] * 6)
    s = sender(store)
    for step in range(20):
        s.points([("a", float(step), 0, step)])
        time.sleep(0.005)
    s.put("a job", lambda run: run.done.append("job"))
    s.close("FINISHED")
    assert [p[3] for p in store.points] == list(range(20)) and store.done == ["job"] and store.ended == "FINISHED"
    assert not s.lost and s.reason == ""


def test_a_store_that_comes_back_during_the_stage_gets_everything():
    store, warned = Store(*[ConnectionRefusedError("refused")] * 4), []
    s = sender(store, warned=warned)
    s.points([("a", 1.0, 0, 0)])
    time.sleep(0.5)
    s.close("FINISHED")
    assert [p[0] for p in store.points] == ["a"] and not s.lost
    assert warned and "trying again until the stage ends" in warned[0]


def test_what_cannot_be_is_counted_and_the_rest_goes_on():
    store = Store(ValueError("bad name"))
    s = sender(store)
    s.points([("a", 1.0, 0, 0), ("b", 1.0, 0, 0)])
    time.sleep(0.1)
    s.put("figures", lambda run: 1 / 0)
    s.put("a job", lambda run: run.done.append("job"))
    s.close("FINISHED")
    assert dict(s.lost) == {"metric points": 2, "figures": 1} and "ValueError: bad name" in s.reason
    assert store.done == ["job"] and store.ended == "FINISHED"


def test_a_store_that_is_away_to_the_end_is_bounded_and_counted():
    def never():
        raise ConnectionRefusedError("refused")

    s = Sender(never, 2.0, False, lambda m: None)
    s.points([("a", 1.0, 0, 0)] * 3)
    s.put("traces", lambda run: None)
    start = time.monotonic()
    s.close("FINISHED")
    assert time.monotonic() - start < 2.5
    assert dict(s.lost) == {"metric points": 3, "traces": 1} and "refused" in s.reason


def test_a_silent_store_is_left_after_the_limit():
    hold = threading.Event()
    s = sender(SimpleNamespace(metrics=lambda p: hold.wait(30), end=lambda status: None), close_s=0.3)
    s.points([("a", 1.0, 0, 0)])
    start = time.monotonic()
    s.close("FINISHED")
    assert time.monotonic() - start < 2.0 and "did not answer in time" in s.reason
    hold.set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LOCKED, "busy"),
        (ConnectionResetError("x"), "away"),
        (TimeoutError("x"), "away"),
        (FileNotFoundError("f.png"), "wrong"),
        (ValueError("x"), "wrong"),
        (SimpleNamespace, "wrong"),
    ],
)
def test_kinds_of_trouble(error, kind):
    assert trouble(error if isinstance(error, Exception) else RuntimeError("x")) == kind
    assert "\n" not in short(ValueError("a\nb"))


def test_the_machine_is_sampled_now_and_then():
    meter = SystemMeter()
    first, second, last = meter.sample(), meter.sample(), meter.sample(last=True)
    names = {p[0] for p in first}
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= names
    assert second == [] and [p[3] for p in last] == [1] * len(last)
    found = {k: v for k, v, *_ in last}
    assert 0 < found["system/system_memory_usage_percentage"] < 100
