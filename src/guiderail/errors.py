"""Errors that explain themselves.

Guarantees: the command line ends on an `Explained` error with its text alone and exit status 1; on any other with a
traceback, since that is a fault of ours. Modules derive their own errors from it, beside a built-in class.
"""

from __future__ import annotations


class Explained(Exception):
    """An error whose text is all that its reader needs: what went wrong, where, and the remedy."""


class InputError(Explained, ValueError):
    """What a stage was given cannot be used: wrong, damaged or made for something else."""
