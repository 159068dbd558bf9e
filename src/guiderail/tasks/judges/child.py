"""The judge's child process: metrics over files that a guest made, under limits.

Reads a job from stdin: {"checks": [{"func", "result", "expected", "options", "has_expected"}], "limits": {...}},
where result and expected are {"value", "finish"}. Writes {"scores": [...]} or {"error": "..."} to stdout. Guarantees:
time, memory, file
size and number of processes are limited before a byte of the guest is read; a file of the guest that cannot be read
scores 0; everything else that goes wrong is an error, never a score.
"""

from __future__ import annotations

import importlib
import json
import math
import resource
import sys
from typing import Any

from guiderail.tasks.judges.registry import METRICS
from guiderail.tasks.judges.safe import Unreadable


def limit(seconds: int, memory: int, file_size: int) -> None:
    """Set the limits of this process, for good."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def load(name: str) -> Any:
    """The function behind "module:function"."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def value(fetched: dict[str, Any] | None) -> Any:
    """What a getter gave, finished where it must be."""
    if fetched is None:
        return None
    return load(fetched["finish"])(fetched["value"]) if fetched.get("finish") else fetched["value"]


def score(check: dict[str, Any], guest_files: str) -> float:
    """The score of one metric. Raises whatever the metric raises, but for a file of the guest that cannot be read."""
    metric = load(METRICS[check["func"]])
    try:
        arguments = [value(check["result"])]
        if check["expected"] is not None:
            arguments.append(value(check["expected"]))
        found = float(metric(*arguments, **(check["options"] or {})))
    except Unreadable as e:
        if guest_files in map(str, e.path.absolute().parents):
            return 0.0
        raise
    if not math.isfinite(found):
        raise ValueError(f"{check['func']} gave {found}")
    return min(1.0, max(0.0, found))


def main() -> int:
    """Judge one job."""
    job = json.loads(sys.stdin.buffer.read())
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    limit(**job["limits"])
    try:
        answer: dict[str, Any] = {"scores": [score(c, job["guest_files"]) for c in job["checks"]]}
    except BaseException as e:  # the parent must be told, whatever it was
        answer = {"error": f"{type(e).__name__}: {e}"[:2000]}
    out.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
