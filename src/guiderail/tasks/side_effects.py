"""What an episode changed in the guest's home folder, beside what it was asked for.

Guarantees: made, changed and removed files are told by path, by content (sha256), not by time; caches and what programs
write about themselves are left out. Pure functions of two listings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

NOISE = (".cache", ".dbus", ".config/dconf", ".config/pulse", ".config/gtk-", ".config/Mousepad", ".config/xfce4",
         ".config/libfm", ".config/pcmanfm", ".config/galculator", ".config/ristretto", ".config/libreoffice",
         ".local/share/gvfs-metadata", ".local/share/recently-used", ".local/share/Mousepad", ".local/share/xfce4",
         ".local/share/ristretto", ".thumbnails", ".xsession-errors", ".ICEauthority", ".Xauthority",
         ".bash_history", ".local/share/Trash")  # fmt: skip
"""Beginnings of paths that programs write for themselves (what lies in the trash is told as removed)."""

LOCK = ".~lock."
"""Beginning of the name of what office programs lay beside an open file."""


class Entry(Protocol):
    """What stands at a path: kind (file, folder, link) and digest of its content."""

    @property
    def kind(self) -> str:
        """file, folder or link."""
        ...

    @property
    def digest(self) -> str:
        """sha256 of a file, target of a link."""
        ...


def changed(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """Lines "made x", "changed x", "removed x", by path; a folder counts only where it was made or removed itself."""
    old, new = ({p: (e.kind, e.digest) for p, e in side.items() if not noise(p)} for side in (before, after))
    lines = [("made", p) for p in new.keys() - old.keys()]
    lines += [("removed", p) for p in old.keys() - new.keys()]
    lines += [("changed", p) for p in new.keys() & old.keys() if new[p] != old[p]]
    return [f"{what} {path}" for what, path in sorted(lines, key=lambda x: (x[1], x[0]))]


def noise(path: str) -> bool:
    """Whether a program writes `path` for itself."""
    return path.startswith(NOISE) or path.rpartition("/")[2].startswith(LOCK)


def unasked(lines: list[str], asked: list[str]) -> list[str]:
    """The lines about paths that the task's judge does not look at (nor what lies below or above them)."""
    return [x for x in lines if not any(_related(x.partition(" ")[2], a) for a in asked)]


def _related(path: str, asked: str) -> bool:
    return path == asked or path.startswith(asked + "/") or asked.startswith(path + "/")
