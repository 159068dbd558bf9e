"""The thread that carries things to MLflow: in order, in batches, again when the store is busy or away.

Guarantees: the stage never waits for it but at the end, and there no longer than `close_s`; a point or job whose
sending failed in a way that may pass (a locked database, a refused or silent server, a server's own fault) is sent
again until it is through or the stage has ended; whatever is given up is counted by kind, with the first reason.
Sending a point twice changes nothing (MLflow keeps one).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from guiderail.tracking_mlflow import MlflowRun
from guiderail.tracking_system import SystemMeter

Job = Callable[[MlflowRun], object]
Point = tuple[str, float, int, int]
FLUSH_S = 3.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 20.0
POINTS = "metric points"


class Sender:
    """Give it work with `put` and `points`; `close` sends the rest. `lost` then says what did not get through."""

    def __init__(self, connect: Callable[[], MlflowRun], close_s: float, system: bool, warn: Callable[[str], None]):
        self._connect, self._close_s, self._warn = connect, close_s, warn
        self._system = SystemMeter() if system else None
        self._jobs: queue.Queue[tuple[str, Job] | None] = queue.Queue()
        self._points: list[Point] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._status = "FINISHED"
        self._pace = 0.5 + os.getpid() % 101 / 100  # so that those who met at a lock do not meet again
        self.lost: Counter[str] = Counter()
        self.reason = ""
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def put(self, what: str, job: Job) -> None:
        """Do `job` after what came before; `what` names it should it be lost."""
        self._jobs.put((what, job))

    def points(self, points: list[Point]) -> None:
        """Send metric points with the next batch."""
        with self._lock:
            self._points += points

    def close(self, status: str) -> None:
        """Send what is left and end the run with `status`; then everything unsent is counted as lost."""
        limit = self._close_s if status == "FINISHED" else self._close_s / 6
        self._status, self._deadline = status, time.monotonic() + limit
        self._jobs.put(None)
        self._closing.set()
        self._thread.join(limit)
        if self._thread.is_alive():
            self.give_up("", TimeoutError("it did not answer in time"))
            self._count_rest()

    def _work(self) -> None:
        run = self._persist("", self._connect)
        if run is None:
            self._closing.wait()
            self._count_rest()
            return
        stop = False
        while not stop:
            try:
                job = self._jobs.get(timeout=FLUSH_S)
                stop = job is None
            except queue.Empty:
                job = None
            if self._system is not None:
                self.points(self._system.sample(last=stop))
            self._flush(run)
            if job is not None:
                self._persist(job[0], lambda do=job[1]: do(run))  # type: ignore[misc]
            if stop:
                self._persist("the run's end", lambda: run.end(self._status))

    def _flush(self, run: MlflowRun) -> None:
        with self._lock:
            points, self._points = self._points, []
        for i in range(0, len(points), 1000):
            part = points[i : i + 1000]
            self._persist(POINTS, lambda part=part: run.metrics(part), count=len(part))  # type: ignore[misc]

    def _persist(self, what: str, do: Callable[[], Any], count: int = 1) -> Any:
        """`do()`, again and again while that may help; None when it was given up."""
        pause = FIRST_PAUSE_S
        while True:
            last = self._closing.is_set()
            try:
                return do()
            except Exception as e:
                kind = trouble(e)
                over = time.monotonic() + pause > self._deadline
                if kind == "wrong" or over or (last and kind == "away"):
                    self.give_up(what, e, count)
                    return None
                if kind == "away":
                    self._warn(f"{short(e)}; trying again until the stage ends")
                    self._closing.wait(pause)
                else:
                    time.sleep(pause * self._pace)
                pause = min(2 * pause, LAST_PAUSE_S)

    def give_up(self, what: str, e: BaseException, count: int = 1) -> None:
        """Count `count` of `what` as lost for the reason `e`, and say so."""
        if what:
            self.lost[what] += count
        self.reason = self.reason or short(e)
        self._warn(short(e))

    def _count_rest(self) -> None:
        with self._lock:
            self.lost[POINTS] += len(self._points)
        while not self._jobs.empty():
            job = self._jobs.get_nowait()
            if job is not None:
                self.lost[job[0]] += 1


def trouble(e: BaseException) -> str:
    """What kind of failure: "busy" (the store is there and occupied), "away" (it cannot be reached, or has a fault of
    its own) or "wrong" (asking again cannot help)."""
    text = str(e)
    if "database is locked" in text or "database table is locked" in text or type(e).__name__ == "Timeout":
        return "busy"
    status = getattr(e, "get_http_status_code", lambda: None)()
    code = str(getattr(e, "error_code", ""))
    if code in ("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED") or status in (429, 503):
        return "busy"
    connection = isinstance(e, OSError) and not isinstance(e, FileNotFoundError | PermissionError)
    if connection or "API request to" in text or "Max retries exceeded" in text:
        return "away"
    return "away" if isinstance(status, int) and status >= 500 and code == "INTERNAL_ERROR" else "wrong"


def short(e: BaseException) -> str:
    """The error in one line."""
    return f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
