"""Judge a task: fetch what its metrics look at, compare in a child process, combine.

Guarantees: only a model-issued Finish(failure) makes an infeasible task a success, and makes every other one a
failure; a
judge that crashes, runs out of time or memory, or gives no number is a `JudgeError`, never a score; every judgement has
a scratch folder of its own, so that episodes of one task cannot read each other's files. Combination as upstream: and =
0 when one is 0, else the mean; or = the best.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import guiderail
from guiderail.tasks.assets import AssetCache
from guiderail.tasks.guest import Guest, GuestError
from guiderail.tasks.judges.getters import FETCHERS, Fetched, Source
from guiderail.tasks.osworld import OsworldTask


class JudgeError(RuntimeError):
    """The judge could not judge; there is no score."""


@dataclass(frozen=True)
class Limits:
    """Bounds of the judge's child process."""

    seconds: int = 60
    memory: int = 2 << 30
    file_size: int = 256 << 20


def combine(scores: Sequence[float], conj: str) -> float:
    """One score of several (at least one). Raises ValueError on another conj than and, or."""
    if conj == "or":
        return max(scores)
    if conj != "and":
        raise ValueError(f"conj {conj!r}: must be and or or")
    return 0.0 if 0.0 in scores else sum(scores) / len(scores)


async def judge(
    task: OsworldTask,
    guest: Guest,
    assets: AssetCache,
    scratch: Path,
    said: Literal["success", "failure", ""] = "",
    limits: Limits = Limits(),
) -> float:
    """The score of the guest's present state, in [0, 1]. Raises JudgeError.

    said: the status of the Finish that the model issued, "" when it issued none. Steps of the task's postconfig must
    have been run; what they printed lies in `scratch`/steps.
    """
    if task.infeasible or said == "failure":
        return float(task.infeasible and said == "failure")
    checks: list[dict[str, Any]] = []
    try:
        for i, check in enumerate(task.checks):
            result = await fetch(check.result, guest, assets, scratch / "guest" / str(i), scratch / "steps")
            held = "guest" if check.expected and check.expected["type"].startswith("vm_") else "expected"
            expected = await fetch(check.expected, guest, assets, scratch / held / f"{i}-expected", scratch / "steps")
            checks.append({"func": check.func, "result": result, "expected": expected, "options": check.options})
    except (GuestError, OSError, KeyError, ValueError) as e:
        raise JudgeError(f"{task.id}: {type(e).__name__}: {e}") from e
    job = {"checks": checks, "limits": asdict(limits), "guest_files": str((scratch / "guest").absolute())}
    scores = await run_child(job, scratch, limits)
    return combine(scores, task.conj)


async def fetch(
    getter: dict[str, Any] | None, guest: Guest, assets: AssetCache, folder: Path, steps: Path
) -> dict[str, Any] | None:
    """What a getter gives, for the child; None when there is no getter. Raises KeyError for one we lack."""
    if getter is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    found: Fetched = await FETCHERS[getter["type"]](Source(guest, assets, folder, steps), getter)
    return asdict(found)


async def run_child(job: dict[str, Any], scratch: Path, limits: Limits) -> list[float]:
    """Scores of `job` from a fresh child process. Raises JudgeError."""
    source = str(Path(guiderail.__file__).parents[1])
    home = scratch / "home"
    home.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "guiderail.tasks.judges.child"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=home,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": source, "HOME": str(home), "LANG": "C.UTF-8",
             "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(limits.seconds):
            out, err = await process.communicate(json.dumps(job).encode())
    except TimeoutError:
        raise JudgeError(f"the judge did not end within {limits.seconds} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    try:
        answer = json.loads(out)
        if "error" in answer:
            raise JudgeError(str(answer["error"]))
        return [float(s) for s in answer["scores"]]
    except (ValueError, KeyError, TypeError):
        tail = err.decode("utf-8", "replace").strip()[-500:]
        raise JudgeError(f"the judge ended with status {process.returncode} and no answer: {tail}") from None
