"""The schedule of an asynchronous run: which version of the weights played which wave, and in which order waves were
taken into training.

Guarantees: a wave is on disk here (one JSON line, flushed to disk) before it is trained on; what is read back is what
was written last for each place; a torn last line is dropped. Two runs from one start, with one seed and one schedule,
train on the same rollouts with the same weights in the same order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guiderail.errors import Explained


class ScheduleError(Explained, RuntimeError):
    """A schedule cannot be followed; the message says where it parts from the run."""


@dataclass(frozen=True)
class Taken:
    """One wave, as it was taken from the queue.

    iteration, round: place in training (round counts the waves that one update took; a dropped wave has the place of
    the one taken after it). wave: its number, which decides its tasks. version: of the weights that played it. slots:
    screens it had (they decide which requests share a batch). digest: of what was sampled (`wave.digest`). dropped: too
    old by then, not trained on.
    """

    iteration: int
    round: int
    wave: int
    version: int
    slots: int
    episodes: int = 0
    digest: str = ""
    dropped: bool = False


class Schedule:
    """The record of one phase at `path`. head: what a run must share with it to follow it."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path, self.head = path, dict(head)
        self.entries: dict[int, Taken] = {}
        if path.exists():
            self.entries = {t.wave: t for t in read_schedule(path, int(self.head["phase"]), self.head)}
        self._rewrite()

    def _rewrite(self) -> None:
        beside = self.path.with_name(f".{self.path.name}.tmp")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w") as f:
            f.write(json.dumps(self.head) + "\n")
            f.writelines(json.dumps(asdict(t)) + "\n" for t in self.entries.values())
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, self.path)

    def add(self, taken: Taken) -> None:
        """Record a wave; one that stands there already the same way is left alone."""
        if self.entries.get(taken.wave) == taken:
            return
        self.entries[taken.wave] = taken
        with self.path.open("a") as f:
            f.write(json.dumps(asdict(taken)) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def since(self, iteration: int) -> list[Taken]:
        """What was taken by `iteration` and later ones, in order."""
        return in_order([t for t in self.entries.values() if t.iteration >= iteration])

    def forget(self, plan: list[Taken]) -> None:
        """Strike these out: the run goes another way."""
        for t in plan:
            self.entries.pop(t.wave, None)
        self._rewrite()


def in_order(taken: list[Taken]) -> list[Taken]:
    """By place in training; waves dropped at a place come before the one taken there."""
    return sorted(taken, key=lambda t: (t.iteration, t.round, not t.dropped, t.wave))


def read_schedule(path: Path, phase: int, head: Mapping[str, Any]) -> list[Taken]:
    """The waves of `phase` in a schedule file (of one phase, or of all of a run one after the other), in order.

    Raises ScheduleError when there is no such file or phase, or it was recorded under another `head`.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as e:
        raise ScheduleError(f"{path}: no schedule to be read there ({e.strerror}); see docs/async.md") from None
    found: dict[int, Taken] | None = None
    inside = False
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if "phase" in row:
                inside = row["phase"] == phase
                if inside:
                    _same(path, row, head)
                    found = {}
            elif inside and found is not None:
                taken = Taken(**row)
                found.pop(taken.wave, None)
                found[taken.wave] = taken
        except (ValueError, TypeError) as e:
            if number == len(lines):  # the line that a kill cut in two
                break
            raise ScheduleError(f"{path}:{number}: no line of a schedule ({e}); record it again") from None
    if found is None:
        raise ScheduleError(f"{path}: holds no schedule of phase {phase}; was it recorded with this recipe?")
    return in_order(list(found.values()))


def _same(path: Path, recorded: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    differ = sorted(k for k in recorded.keys() | head.keys() if recorded.get(k) != head.get(k))
    if differ:
        told = ", ".join(f"{k} {recorded.get(k)!r} there and {head.get(k)!r} here" for k in differ)
        raise ScheduleError(f"{path}: recorded by a run that differs: {told}; give this run the same, or record anew")
