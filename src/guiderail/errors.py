"""Errors that explain themselves.

Guarantees: the command line ends on an `Explained` error, and on what the machine refuses (`refused_by_machine`), with
its text alone and exit status 1; on any other with a traceback, since that is a fault of ours. Modules derive their own
errors from it, beside a built-in class.
"""

from __future__ import annotations

import errno

_PLACE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this system allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EEXIST: "something else is there already",
    errno.ENOTDIR: "a file stands where a folder should be",
    errno.EISDIR: "a folder stands where a file should be",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
    errno.EIO: "the disk cannot be read or written",
}
_REMEDY = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EFBIG: "Raise the limit (ulimit -f)",
    errno.EMFILE: "Raise the limit (ulimit -n)",
    errno.ENFILE: "Close other programs",
    errno.EEXIST: "Move it away",
    errno.ENOTDIR: "Move it away",
    errno.EISDIR: "Move it away",
    errno.EIO: "Look at the disk",
}


class Explained(Exception):
    """An error whose text is all that its reader needs: what went wrong, where, and the remedy."""


class InputError(Explained, ValueError):
    """What a stage was given cannot be used: wrong, damaged or made for something else."""


def refused_by_machine(e: OSError) -> str | None:
    """One line for an error of the disk or the file system (full, read-only, not ours, a file in the way); None for
    any other, which is a fault of ours or of the network."""
    what = _PLACE.get(e.errno or 0)
    if what is None:
        return None
    where = f"{e.filename}: " if e.filename else ""
    remedy = _REMEDY.get(e.errno or 0, "Give yourself the right to write there, or work elsewhere")
    return f"{where}{what}. {remedy}, then run the same command again; what was finished is kept."
