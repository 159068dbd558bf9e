"""Publish directories atomically and keep resumable training state.

Guarantees: a state folder that exists under its final name is whole (written beside, fsynced, renamed) and hashed;
the newest one is found after kill -9; what is restored is bit for bit what was saved. Tensors are safetensors, the
rest is JSON: nothing is pickled.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guiderail.checkpoints.manifest import sha256_file
from guiderail.checkpoints.tensors import read_tensors, write_tensors
from guiderail.errors import Explained

_STATE = re.compile(r"state-(\d{8})")


class StateError(Explained, RuntimeError):
    """A saved state is damaged or belongs to another run."""


class BusyError(Explained, RuntimeError):
    """Another process writes the same folder."""


def fsync_tree(folder: Path) -> None:
    """Flush every file below `folder`, and the directories, to disk."""
    for path in [*(x for x in sorted(folder.rglob("*"))), folder]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def publish(final: Path, write: Callable[[Path], None]) -> Path:
    """Call `write(folder beside final)`, fsync, rename to `final`. A killed writer leaves only a `.tmp` folder that
    the next one removes; two at a time never write into one.

    Raises FileExistsError when `final` exists: a published folder is never changed; BusyError while another process
    writes it.
    """
    if final.exists():
        raise FileExistsError(f"{final} exists; published folders are not overwritten")
    beside = final.with_name(final.name + ".tmp")
    claim = _claim(beside)
    try:
        write(beside)
        fsync_tree(beside)
        beside.rename(final)
    finally:
        os.close(claim)
    fd = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return final


def _claim(folder: Path) -> int:
    """Make `folder`, empty, and lock it (on file systems that lock folders): the lock is gone when what is returned is
    closed, or its process ends in any way. Raises BusyError."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # published just now
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise BusyError(f"{folder}: another process is writing there; wait for it or stop it") from None
        except OSError as e:
            if e.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        if folder.exists() and os.path.samestat(os.fstat(fd), folder.stat()):
            break
        os.close(fd)
    for old in folder.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    return fd


@dataclass(frozen=True)
class State:
    """A resumable state: `step` units of work are done; tensors by part ("weights", "optimizer", ...) and name; meta
    is JSON."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    meta: dict[str, Any]


def save_state(folder: Path, state: State, keep: int = 2) -> Path:
    """Publish `folder/state-<step>` and remove all but the newest `keep`. Adds the CPU generator's state as part
    "rng"."""
    final = folder / f"state-{state.step:08d}"
    parts = {**state.tensors, "rng": {"cpu": torch.get_rng_state()}}

    def write(beside: Path) -> None:
        for name, tensors in parts.items():
            # clone: a view or a tied tensor would share storage, which safetensors refuses
            write_tensors(
                {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, beside / f"{name}.safetensors"
            )
        files = {f"{name}.safetensors": sha256_file(beside / f"{name}.safetensors") for name in parts}
        (beside / "state.json").write_text(
            json.dumps({"step": state.step, "files": files, "meta": state.meta}, indent=1)
        )

    if final.exists():  # same step again, e.g. a stop right after a save
        return final
    publish(final, write)
    for old in state_folders(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def state_folders(folder: Path) -> list[Path]:
    """State folders, oldest first."""
    return sorted(x for x in folder.glob("state-*") if _STATE.fullmatch(x.name))


def load_state(folder: Path) -> State | None:
    """The newest state, or None when there is none. Restores the CPU generator. Raises StateError on a damaged one."""
    found = state_folders(folder)
    if not found:
        return None
    newest = found[-1]
    try:
        head = json.loads((newest / "state.json").read_bytes())
        files, step, meta = dict(head["files"]), int(head["step"]), dict(head["meta"])
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise StateError(f"{newest / 'state.json'}: damaged ({type(e).__name__}); delete {newest} and resume") from None
    for name, digest in files.items():
        if not (newest / name).is_file() or sha256_file(newest / name) != digest:
            raise StateError(f"{newest / name}: damaged (sha256 is not the recorded one); delete {newest} and resume")
    tensors = {Path(name).stem: read_tensors(newest / name) for name in files}
    torch.set_rng_state(tensors.pop("rng")["cpu"])
    return State(step, tensors, meta)
