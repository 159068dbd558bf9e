"""Locks of a stage: one attempt of the same work at a time, and one writer of the same output at a time.

Guarantees: a lock ends with its process however that ends (flock), and nothing waits: a second holder is refused with
the place and the remedy. Lock files lie in the attempt root, never beside outputs; a free one is removed. Holds on one
machine, and on shared file systems as far as they carry flock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from guiderail.params import ParamError


@contextmanager
def only_one(lock: Path, refusal: str) -> Iterator[None]:
    """Hold `lock` for the length of the block. Raises ParamError with `refusal` when another process holds it."""
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            f = lock.open("a")
        except FileNotFoundError:  # the folder was empty and its last user removed it just now
            continue
        with f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ParamError(refusal) from None
            if not _is_at(f.fileno(), lock):  # its last holder removed it between our open and our lock
                continue
            try:
                yield
            finally:
                _remove(lock)
            return


def _remove(lock: Path) -> None:
    """Remove the lock file and the folders above it that it leaves empty, the root (its grandparent) included."""
    lock.unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or gone
        lock.parent.rmdir()
        lock.parent.parent.rmdir()


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def output_lock(root: Path, final: Path) -> Path:
    """The lock file of the output `final`, below `root`: one per place on disk, however the place is written."""
    name = hashlib.sha256(os.fsencode(final.resolve())).hexdigest()[:24]
    return root / "outputs" / f"{name}.lock"
