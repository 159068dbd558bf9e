"""All that stands below a folder of a machine: the command that lists it there, and its output as entries.

Guarantees: names and link targets come out as text whatever bytes they hold; no link is followed; what cannot be read
is left out, and once 20000 entries are found the rest of each folder is. The digest of what is no regular file, or one
beyond 64 MiB, is empty. Changes nothing there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

SCRIPT = """
import hashlib, json, os, stat, sys
out = {}
for top, folders, names in os.walk(sys.argv[1]):
    for name in folders + names:
        path = os.path.join(top, name)
        try:
            s = os.lstat(path)
            kind = "folder" if stat.S_ISDIR(s.st_mode) else "link" if stat.S_ISLNK(s.st_mode) else "file"
            digest = os.readlink(path) if kind == "link" else ""
            if kind == "file" and stat.S_ISREG(s.st_mode) and s.st_size <= 64 << 20:
                with open(path, "rb") as f:
                    digest = hashlib.sha256(f.read()).hexdigest()
        except OSError:
            continue
        shown = os.fsencode(os.path.relpath(path, sys.argv[1])).decode(errors="backslashreplace")
        digest = os.fsencode(digest).decode(errors="backslashreplace")
        out[shown] = [kind, s.st_size if kind == "file" else 0, digest]
        if len(out) >= 20000:
            break
json.dump(out, sys.stdout)
"""


@dataclass(frozen=True)
class Entry:
    """What stands at a path: "file", "folder" or "link"; bytes of a file; sha256 (of a link: where it leads)."""

    kind: str
    size: int
    digest: str


def command(folder: str) -> list[str]:
    """The command that lists what is below `folder`."""
    return ["python3", "-I", "-S", "-c", SCRIPT, folder]


def entries(output: str) -> dict[str, Entry]:
    """The command's output as entries, by path from the folder."""
    return {name: Entry(*row) for name, row in json.loads(output).items()}
