"""OSWorld's task files, and the lists that name them: folders in, checked and typed tasks out.

Guarantees: what cannot be used is one `TaskFileError` that names the file: unreadable, too large, not JSON, a list of
another shape, or what `osworld_parse` finds wrong. A list names only files that are there, inside its folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from guiderail.tasks.osworld import OsworldTask, TaskFileError
from guiderail.tasks.osworld_parse import check_inside, parse_task

MAX_FILE = 4 << 20


def load_task(path: str | Path) -> OsworldTask:
    """The task in a file. Raises TaskFileError."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE:
            raise TaskFileError(f"{path}: larger than {MAX_FILE >> 20} MiB: no task file.")
        data = json.loads(path.read_bytes())
    except OSError as e:
        raise TaskFileError(f"{path}: cannot be read: {e.strerror or e}.") from None
    except (ValueError, RecursionError) as e:  # not UTF-8 or not JSON
        raise TaskFileError(f"{path}: not JSON: {e}.") from None
    return parse_task(data, str(path))


def load_folder(folder: str | Path) -> list[OsworldTask]:
    """All tasks under `folder`/examples (or `folder` itself), by path. Raises TaskFileError at the first bad one.

    A task goes by its file (`OsworldTask.name`), as upstream's lists have it: two of upstream's files share an id.
    """
    folder = Path(folder)
    root = folder / "examples" if (folder / "examples").is_dir() else folder
    files = sorted(root.rglob("*.json"))
    if not files:
        raise TaskFileError(f"{folder}: no task files (*.json) in it. Give the folder that holds OSWorld's examples.")
    return [load_task(f) for f in files]


def load_lists(folder: str | Path) -> dict[str, list[str]]:
    """The lists beside the examples (test_all.json, ...): name -> task files, relative to `folder`/examples.

    Raises TaskFileError when a list is of another shape, names a file that is not there or one outside the folder.
    """
    folder, found = Path(folder), dict[str, list[str]]()
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError) as e:
            raise TaskFileError(f"{path}: not JSON: {e}.") from None
        if not isinstance(data, dict) or not all(isinstance(v, list) for v in data.values()):
            raise TaskFileError(f"{path}: must map a domain to a list of task ids.")
        names: list[str] = []
        for domain, ids in data.items():
            for task in ids:
                name = f"{domain}/{task}.json"
                check_inside(name, f"{path}: {domain}")
                if not (folder / "examples" / name).is_file():
                    raise TaskFileError(f"{path}: {domain}: {task!r}: examples/{name} is not there.")
                names.append(name)
        found[path.stem] = names
    return found
