"""Which GPUs a job may use, on one machine: Snakemake counts them (`--resources gpu=N`), this gives them numbers.

Guarantees: a device is lent to one job at a time, by a lock on a file of its own; a job that ends, is killed (kill -9
too) or whose machine stops gives it back, for the kernel drops the lock with the process that holds it. All jobs of one
user on one machine share the files, whatever folder they run in. Inside a Slurm job or a pod it lends what the job or
pod was given, to those inside alone. Other programs that use the GPUs do not know of the locks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ENV = "CUDA_VISIBLE_DEVICES"
FOLDER_ENV = "GUIDERAIL_GPU_LOCKS"
SLURM = "SLURM_JOB_ID"  # Slurm numbers a job's devices from 0, so two jobs of a node would share the locks
POLL_S = 0.5


class SlotError(SystemExit):
    """A job asks for more GPUs than the machine has. The text is for the user."""


@dataclass(frozen=True)
class Slots:
    """Devices lent to this process until it ends or `close` is called; `devices` is empty where nothing is lent."""

    devices: tuple[str, ...]
    files: tuple[int, ...]

    def environment(self) -> dict[str, str]:
        """What the job's environment needs."""
        return {ENV: ",".join(self.devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.devices else {}

    def close(self) -> None:
        """Give them back."""
        for fd in self.files:
            os.close(fd)


def lock_folder() -> Path:
    """Where the lock files lie: one folder per user; a Slurm job has its own.

    Not the runtime folder of a session, which a job of cron does not have and which goes when the user logs out, nor
    below TMPDIR, which may differ from shell to shell: two jobs with folders of their own would get the same device.
    """
    if FOLDER_ENV in os.environ:
        return Path(os.environ[FOLDER_ENV])
    root = Path("/tmp")
    if not os.access(root, os.W_OK):
        root = Path(tempfile.gettempdir())
    job = f"-slurm-{os.environ[SLURM]}" if SLURM in os.environ else ""
    return root / f"guiderail-gpus-{os.getuid()}{job}"


def devices(env: Mapping[str, str] | None = None) -> list[str]:
    """Devices that jobs may use: those named in CUDA_VISIBLE_DEVICES, else all that the driver lists."""
    env = os.environ if env is None else env
    if ENV in env:
        named = [x.strip() for x in env[ENV].split(",")]
        if "-1" in named:  # to CUDA, what stands behind it is not there
            named = named[: named.index("-1")]
        return list(dict.fromkeys(filter(None, named)))  # one named twice is one device
    tool = shutil.which("nvidia-smi", path=env.get("PATH"))
    if tool is None:
        return []
    done = subprocess.run([tool, "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def _try(folder: Path, device: str) -> int | None:
    """The open, locked file of a device, or None while another job has it."""
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in device)
    fd = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)  # for people who look; the lock is what counts
    return fd


def _private(folder: Path) -> None:
    """Make the folder; refuse one that another user made. Raises SlotError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SlotError(f"{folder}: belongs to another user; set {FOLDER_ENV} to a folder of your own")


def take(count: int, env: Mapping[str, str] | None = None) -> Slots:
    """Wait for `count` free devices, lowest first, and lend them. None are lent when none are asked for or the machine
    has none (the job then runs on its CPUs). Raises SlotError.

    A job takes all it needs or nothing, so two jobs never wait for each other's half.
    """
    env = os.environ if env is None else env
    found = devices(env) if count > 0 else []
    if not found:
        return Slots((), ())
    if count > len(found):
        raise SlotError(
            f"this job asks for {count} GPUs, this machine lends {len(found)} ({', '.join(found)}): lower "
            f"resources.<stage>.gpu in params.yaml, or widen {ENV}"
        )
    folder = lock_folder()
    _private(folder)
    told = False
    while True:
        held: list[tuple[str, int]] = []
        for device in found:
            fd = _try(folder, device) if len(held) < count else None
            if fd is not None:
                held.append((device, fd))
        if len(held) == count:
            return Slots(tuple(d for d, _ in held), tuple(fd for _, fd in held))
        for _, fd in held:
            os.close(fd)
        if not told:
            print(f"waiting for {count} of {len(found)} GPUs; locks in {folder}", file=sys.stderr, flush=True)
            told = True
        time.sleep(POLL_S)
