"""Run one job of the chain for Snakemake: `python -m guiderail.workflow.job rl@grpo-0 --log logs/rl/grpo/seed0.log`.

Guarantees: DVC executes the stage, records it in dvc.lock, or restores it from its cache; every line goes to the log
and to stderr, after one that says that the job starts and before one that says so when it did not end well; a signal or
the death of Snakemake (kill -9 included) ends the stage too; with --gpus N the job sees N GPUs that no other job of
this machine has (`gpu_slots`). Where DVC is absent, it warns and runs the command itself: the results are the same,
nothing is recorded.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from guiderail.workflow import gpu_slots
from guiderail.workflow.ledger import dvc_command, environment
from guiderail.workflow.spec import Job, Spec

PR_SET_PDEATHSIG = 1


def die_with_parent(sign: int = signal.SIGTERM) -> None:
    """Ask the kernel for `sign` when the parent dies. Does nothing where there is no prctl (not Linux)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sign)
    except (OSError, AttributeError):
        return


def find(spec: Spec, address: str) -> Job:
    """The job with DVC's name `address`. Raises SystemExit."""
    for job in spec.jobs():
        if job.address == address:
            return job
    raise SystemExit(
        f"{address}: no such job; the sweep in params.yaml gives {', '.join(j.address for j in spec.jobs())}"
    )


def command(spec: Spec, job: Job) -> list[str]:
    """What to start: DVC on this one stage, or, without DVC, the stage's own command."""
    dvc = dvc_command()
    if dvc:
        return [*dvc, "--wait-for-lock", "repro", "-q", "--single-item", job.address]
    print("warning: DVC is not installed; the stage runs, but nothing is recorded in dvc.lock", file=sys.stderr)
    return shlex.split(spec.command(job))


def run(argv: Sequence[str], log: Path, slots: gpu_slots.Slots | None = None) -> tuple[int, bool]:
    """Run `argv` in a process group of its own, teeing its output to `log` and stderr. Returns its exit status, and
    whether it was told to stop.

    slots: GPUs that are the job's; it holds their locks too, so they stay lent until it has ended as well.
    """
    slots = slots or gpu_slots.Slots((), ())
    log.parent.mkdir(parents=True, exist_ok=True)
    env = environment() | {"GUIDERAIL_ENGINE": "snakemake", "PYTHONUNBUFFERED": "1"} | slots.environment()
    child = subprocess.Popen(
        argv,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=slots.files,
        preexec_fn=die_with_parent,
    )

    stopped = False

    def forward(sign: int, _: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        os.killpg(child.pid, sign)

    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, forward)
    die_with_parent()
    assert child.stdout is not None
    with log.open("wb") as f:
        for line in child.stdout:
            f.write(line)
            f.flush()
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
    status = child.wait()
    return (128 - status if status < 0 else status), stopped


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Run one job of the chain through DVC.")
    parser.add_argument("address", help="DVC's name of the job, e.g. rl@grpo-0")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to wait for and show to the job alone")
    args = parser.parse_args(argv)
    spec = Spec.read()
    argv = command(spec, find(spec, args.address))
    slots = gpu_slots.take(args.gpus)  # held until this process ends, however it does
    print(f"{args.address}: starts; its log is {args.log}", file=sys.stderr, flush=True)
    status, stopped = run(argv, args.log, slots)
    if status:
        how = "was stopped" if stopped else f"failed with status {status}"
        print(f"{args.address}: {how}; what it said is in {args.log}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
