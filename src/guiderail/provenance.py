"""Where an output came from: parameters, code, lock, packages and inputs, by content.

Guarantees: nothing here names a host, a user or an absolute path; times and memory stand under the one key `cost`.
Works without git and without dvc.lock (the fields are then null).
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from guiderail.workflow.spec import files_below

PACKAGES = [
    "guiderail",
    "torch",
    "torchvision",
    "transformers",
    "tokenizers",
    "peft",
    "safetensors",
    "numpy",
    "pillow",
    "playwright",
    "miniwob",
    "pandas",
    "pyarrow",
    "matplotlib",
    "snakemake",
    "dvc",
    "mlflow",
]


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def tree_digest(path: Path) -> str:
    """sha256 of a file, or of a folder: over the sorted lines `<relative path> <sha256>` of its files."""
    if path.is_file():
        return file_digest(path)
    h = hashlib.sha256()
    for f in files_below(path):
        h.update(f"{f.relative_to(path).as_posix()} {file_digest(f)}\n".encode())
    return h.hexdigest()


def manifest_digest(model: Path) -> str | None:
    """sha256 of a model folder's manifest.json; None for a model from elsewhere, whose files no record vouches for."""
    file = model / "manifest.json"
    return file_digest(file) if file.is_file() else None


def input_digests(deps: Iterable[str]) -> dict[str, str]:
    """Declared dependency -> digest. Raises FileNotFoundError when one is absent."""
    result = {}
    for dep in deps:
        if not Path(dep).exists():
            raise FileNotFoundError(dep)
        result[dep] = tree_digest(Path(dep))
    return result


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def git_state() -> dict[str, Any]:
    """Commit, and what differs from it (dvc.lock does not count: every stage writes it)."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock")
    extra = _git("ls-files", "--others", "--exclude-standard", "--", "src", "workflow", "plugins")
    if commit is None or changed is None:
        return {"commit": None, "dirty": None, "changed": []}
    paths = [line[3:] for line in changed.splitlines()] + (extra or "").splitlines()
    return {"commit": commit.strip(), "dirty": bool(paths), "changed": sorted(paths)[:50]}


def lock_digest() -> str | None:
    """sha256 of dvc.lock, or None."""
    return file_digest(Path("dvc.lock")) if Path("dvc.lock").exists() else None


def versions() -> dict[str, str]:
    """Python and the packages that can change a number."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
