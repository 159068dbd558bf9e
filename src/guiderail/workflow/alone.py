"""Takes away the lock that a killed Snakemake left in the folder.

Guarantees: as long as one Snakemake of this folder lives, its lock stays and a second one is refused by Snakemake
itself; after a kill -9 or a power cut the same command goes on. Who lives is known from a lock of the operating system
on a file, which ends with its process. Where the file system has none (some network folders), nothing is taken away and
`snakemake --unlock` is left to people. Other network folders know such locks on one machine only: start the engines of
one folder on one machine (jobs of a cluster do not come here).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

ALIVE, LOCKS = "guiderail_alive", "locks"


def enter(folder: Path) -> int | None:
    """Remove what a dead Snakemake locked in `folder` (.snakemake) unless another lives. Returns a descriptor to keep
    open for as long as this process may hold locks itself; None where the folder takes no file or knows no locks."""
    try:
        folder.mkdir(exist_ok=True)
        held = os.open(folder / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:  # a folder that is not ours to write: Snakemake says so itself when it has to
        return None
    try:
        with contextlib.suppress(BlockingIOError):  # another lives, or looks as we do
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in (folder / LOCKS).glob("*.lock"):
                left.unlink(missing_ok=True)
        fcntl.flock(held, fcntl.LOCK_SH)
    except OSError:
        os.close(held)
        return None
    return held
