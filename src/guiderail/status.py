"""`guiderail status`: what of the chain is done, stale, running, failed or still to do, as both engines see it.

Guarantees: asks DVC (by content) and Snakemake (a dry run) and changes no result; a stage that runs is known by its
lock, so one that was killed is never shown as running. Without DVC or without Snakemake the other's view is shown and
the lack is said.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guiderail.errors import Explained
from guiderail.params import ParamError
from guiderail.stages.attempts import STOPPED, notes
from guiderail.stages.locks import output_lock
from guiderail.stages.paths import WORK
from guiderail.stages.runner import digest_now
from guiderail.workflow.ledger import dvc_command, environment, vouched
from guiderail.workflow.spec import Job, Spec


class StatusError(Explained, RuntimeError):
    """An engine could not be asked."""


class Busy(StatusError):
    """DVC holds a job that a stage is at work on."""


@dataclass(frozen=True)
class Row:
    """One job. state: done, stale, to do, running, failed or stopped; snakemake: up to date or would run."""

    job: str
    state: str
    why: str
    output: str
    snakemake: str = ""


def held(lock: Path) -> bool:
    """Whether a process holds the flock `lock`. Never waits, holds it for no longer than the look."""
    try:
        with lock.open() as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def changes(entry: Any) -> str:
    """What `dvc status --json` says of one job, in words."""
    said = []
    for part in entry:
        if isinstance(part, str):
            said.append(part)
            continue
        for kind, items in part.items():
            if not isinstance(items, Mapping):
                said.append(f"{kind}: {items}")
                continue
            for name, how in items.items():
                if isinstance(how, Mapping):  # a parameter file: key -> how
                    said += [f"{key} {h}" for key, h in how.items()]
                elif kind == "changed outs":
                    said.append(f"output {how}" if how != "not in cache" else "output not in DVC's cache")
                else:
                    said.append(f"{name} {how}")
    return "; ".join(said)


def ask_dvc(jobs: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Job -> changes, of those of `jobs` (None: all) that are not up to date. None without DVC. Raises StatusError,
    Busy where a stage is at work on one of them."""
    dvc = dvc_command()
    if not dvc:
        return None
    if jobs is not None and not jobs:
        return {}
    command = [*dvc, "status", "--json", *(jobs or ())]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        if "is busy" in said:
            raise Busy("DVC is at work; ask again in a moment")
        raise StatusError(f"`dvc status` failed: {said[-500:]}")
    return dict(json.loads(done.stdout or "{}"))


def ask_dvc_at_work(spec: Spec) -> dict[str, Any] | None:
    """`ask_dvc` while stages may be running: they, and what is below them, are not asked for, since DVC would refuse.
    None as well where DVC has begun a stage that does not hold its lock yet."""
    for _ in range(3):
        running = {j.address for j in spec.jobs() if held(output_lock(WORK, Path(spec.job_outs(j)[0])))}
        free = vouched(spec, running)
        try:
            found = ask_dvc(free if running else None)
        except Busy:
            time.sleep(1)
            continue
        waiting = {j.address: ["a stage above it is running"] for j in spec.jobs() if j.address not in free}
        return None if found is None else waiting | found
    return None


def ask_snakemake() -> set[str] | None:
    """Outputs that a `snakemake` now would make. None without Snakemake. Raises StatusError."""
    if importlib.util.find_spec("snakemake") is None:
        return None
    command = [sys.executable, "-m", "snakemake", "-n", "--nolock", "--cores", "1", "--quiet", "host"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode and "is busy" in done.stderr + done.stdout:  # DVC is at work: go by Snakemake's own books
        alone = environment() | {"GUIDERAIL_LEDGER": "off"}
        done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if done.returncode:
        said = [line for line in text.splitlines() if not line.startswith(PREAMBLE)]
        raise StatusError(f"`snakemake -n` failed: {' '.join(' '.join(said).split())[-500:]}")
    return {o.strip() for line in re.findall(r"^\s+output: (.+)$", text, re.M) for o in line.split(",")}


PREAMBLE = ("Using workflow specific profile", "Assuming unrestricted shared", "Building DAG", "Using shell:")
"""What Snakemake says whatever happens."""
STATE = re.compile(r"state-(\d{8})")
UNIT = {"rl": "iterations", "sft": "optimiser steps", "prm": "optimiser steps"}
"""What the curves and checkpoints of a training stage count."""


def saved(work: Path) -> int:
    """Units of work that the newest checkpoint of an attempt holds, those of all phases of a recipe together: where the
    same command goes on. 0 without a checkpoint."""
    folders = [work, *work.glob("phase*")]
    return sum(
        max((int(m[1]) for x in f.glob("state-*") if (m := STATE.fullmatch(x.name))), default=0) for f in folders
    )


def reached(work: Path) -> str:
    """`30 iterations done, success 0.52` from the last whole line of a training's curves, whose steps count from 0;
    empty without one."""
    unit = UNIT.get(work.parent.name)
    try:
        lines = (work / "curves.jsonl").read_text().splitlines() if unit else []
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            row = json.loads(line)
            done = int(row["step"]) + 1
        except (ValueError, KeyError, TypeError):
            continue
        shown = [f"{k} {row[k]:.3g}" for k in row if k.endswith(("success", "loss")) and isinstance(row[k], float)]
        return ", ".join([f"{done} {unit} done", *shown[:2]])
    return ""


def goes_on(work: Path, now: Callable[[], str]) -> str:
    """`; the same command goes on after 16 iterations`: those of the checkpoint, for what came after it is done again.
    now: digest of a run of the job as things stand; one that is not the attempt's would leave it aside."""
    done = saved(work)
    if not done:
        return ""
    try:
        same = now().startswith(work.name)
    except (ParamError, OSError) as e:
        return f"; it cannot be run now: {e}"
    if not same:
        return "; parameters or inputs have changed since then, so it would begin anew"
    return f"; the same command goes on after {done} {UNIT.get(work.parent.name, 'steps')}"


def with_those_below(spec: Spec, dvc: dict[str, Any]) -> dict[str, Any]:
    """`dvc` with the jobs below a changed one added: DVC itself finds them unchanged until the one above has run."""
    good = set(vouched(spec, set(dvc)))
    below = {j.address: ["a stage above it is not up to date"] for j in spec.jobs() if j.address not in good}
    return below | dvc


def row(job: Job, spec: Spec, dvc: dict[str, Any] | None, ahead: set[str] | None, left: dict[str, Any]) -> Row:
    """The state of one job: its lock first, then what DVC says, then what an attempt left."""
    (out,) = spec.job_outs(job)
    smk = "" if ahead is None else "would run" if out in ahead else "up to date"
    note, work = left.get(job.address, (None, None))
    if held(output_lock(WORK, Path(out))):
        told = [f"since {time.strftime('%H:%M:%S', time.localtime(note.began))}, process {note.pid}"] if note else []
        return Row(job.address, "running", ", ".join([*told, *filter(None, [reached(work) if work else ""])]), out, smk)
    there = Path(out).exists()
    dirty = job.address in dvc if dvc is not None else not there or smk == "would run"
    if not dirty:
        return Row(job.address, "done", "", out, smk)
    if note is not None and work is not None:
        at = goes_on(work, lambda: digest_now(job))
        if note.why:
            state = "stopped" if note.why in STOPPED.values() else "failed"
            return Row(job.address, state, f"{note.why}{at}", out, smk)
        return Row(job.address, "stopped", f"killed or the machine went down{at}", out, smk)
    if not there:
        return Row(job.address, "to do", "", out, smk)
    return Row(job.address, "stale", changes(dvc[job.address]) if dvc else "", out, smk)


def collect() -> list[Row]:
    """A row for each job of the sweep, in the order of the chain."""
    spec = Spec.read()
    dvc, ahead, left = ask_dvc_at_work(spec), ask_snakemake(), notes(WORK)
    if dvc is not None:
        dvc = with_those_below(spec, dvc)
    return [row(job, spec, dvc, ahead, left) for job in spec.jobs()]


def brief(why: str, room: int) -> str:
    """As many reasons as fit into `room` characters, and how many more there are."""
    parts = [p.removeprefix("src/guiderail/") for p in why.split("; ")]
    for n in range(len(parts), 0, -1):
        told = "; ".join(parts[:n]) + (f"; and {len(parts) - n} more" if n < len(parts) else "")
        if len(told) <= room:
            return told
    return f"{len(parts)} reasons (--json)" if len(parts) > 1 else parts[0]


def show(rows: list[Row], as_json: bool, columns: int | None = None) -> str:
    """The table as text, or as JSON. columns: width of a terminal, to which reasons are cut; None: they are not."""
    if as_json:
        return json.dumps([asdict(r) for r in rows], indent=1)
    width = max(len(r.job) for r in rows)
    whys = [r.why if columns is None else brief(r.why, max(24, columns - width - 10)) for r in rows]
    lines = [f"{r.job:<{width}}  {r.state:<8}{why}".rstrip() for r, why in zip(rows, whys, strict=True)]
    done, total = sum(r.state == "done" for r in rows), len(rows)
    lines.append(f"\nDVC: {done} of {total} up to date." if dvc_command() else "\nDVC is not installed.")
    if rows[0].snakemake:
        lines.append(f"Snakemake: would run {sum(r.snakemake == 'would run' for r in rows)} of {total}.")
    return "\n".join(lines)
