"""The note that an attempt leaves in its folder: whose it is, since when, how it ended if it failed.

Guarantees: a note is whole or not there, and goes with the attempt folder when the stage succeeds; `notes` reads what
is there and never fails on a damaged one. It tells nobody whether the process still runs: the lock does.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FILE = "attempt.json"
STOPPED = {130: "by Ctrl-C", 143: "by SIGTERM"}
"""Exit statuses of a stage that was told to stop, and how its note says so."""


@dataclass(frozen=True)
class Note:
    """One attempt. Times in seconds since the epoch; `ended` 0 and `why` empty while it runs, or after a kill."""

    job: str
    pid: int
    began: float
    ended: float = 0.0
    why: str = ""


def begin(work: Path, job: str) -> None:
    """Note that this process works on `job` in the attempt folder `work`."""
    _write(work, Note(job, os.getpid(), time.time()))


def fail(work: Path, error: BaseException) -> None:
    """Note how the attempt ended. The first line of the error, shortened: notes are for a table."""
    note = read(work / FILE)
    if note is None:
        return
    text = " ".join(str(error).split())[:300]
    status = 130 if isinstance(error, KeyboardInterrupt) else error.code if isinstance(error, SystemExit) else None
    why = f"{type(error).__name__}: {text}" if status is None else f"ended with exit status {status}"
    if status in STOPPED:
        why = STOPPED[status]
    _write(work, replace(note, ended=time.time(), why=why))


def _write(work: Path, note: Note) -> None:
    partial = work / f"{FILE}.tmp"
    partial.write_text(json.dumps(asdict(note)))
    os.replace(partial, work / FILE)


def read(path: Path) -> Note | None:
    """The note at `path`; None where there is none that can be read."""
    try:
        return Note(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def notes(root: Path) -> dict[str, tuple[Note, Path]]:
    """Job -> its newest note and attempt folder, below the attempt root."""
    found: dict[str, tuple[Note, Path]] = {}
    for path in root.glob(f"*/*/{FILE}"):
        note = read(path)
        if note is not None and (note.job not in found or found[note.job][0].began < note.began):
            found[note.job] = (note, path.parent)
    return found
