"""tasks.json as a file: read, and checked for the shape that the rest of the code relies on.

Guarantees: a file that is damaged, of another shape, or names a suite or template that does not exist is an InputError
with file, place and remedy. Its hash, version and splits are `splits.load_manifest`'s affair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guiderail.errors import InputError
from guiderail.tasks.suites import get_suite, names
from guiderail.tasks.types import Split

AGAIN = "Run `guiderail provision` again, or restore the file (dvc checkout)."


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Task(_Record):
    """A TaskSpec as JSON."""

    suite: str
    template: str
    seed: int
    split: Split
    wording: int
    domain: str
    max_steps: int = Field(ge=1)
    threshold: float


class _Splits(_Record):
    train: list[_Task]
    fresh: list[_Task]
    heldout: list[_Task]


class _Shape(_Record):
    suite: str
    version: int
    task_seed: int
    wordings: int = Field(ge=1)
    train_templates: list[str] = Field(min_length=1)
    heldout_templates: list[str]
    splits: _Splits
    hash: str


def read(path: str | Path) -> dict[str, Any]:
    """The mapping in a manifest's file, not yet checked. Raises InputError when there is none."""
    try:
        manifest = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as e:  # not UTF-8 or not JSON
        raise InputError(f"{path}: damaged, not readable as JSON ({e}). {AGAIN}") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: damaged, must hold a mapping, holds {type(manifest).__name__}. {AGAIN}")
    return manifest


def check_shape(manifest: Mapping[str, Any], path: str | Path) -> None:
    """Raise InputError unless `manifest` has all keys, of the right types, and its suite and templates exist."""
    try:
        _Shape.model_validate(manifest, strict=True)
    except ValidationError as e:
        first, more = e.errors()[0], e.error_count() - 1
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {where}: {first['msg']}{f' (and {more} more)' if more else ''}. {AGAIN}") from None
    if manifest["suite"] not in names():
        raise InputError(f"{path}: suite {manifest['suite']!r} does not exist here. {AGAIN}")
    suite = get_suite(manifest["suite"])
    used = {*manifest["train_templates"], *manifest["heldout_templates"]}
    unknown = sorted(used - suite.templates.keys())
    if unknown:
        raise InputError(f"{path}: suite {suite.name} has no templates {', '.join(unknown[:5])}. {AGAIN}")
