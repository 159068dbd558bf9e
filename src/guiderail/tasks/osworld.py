"""One of OSWorld's tasks, typed: how its machine is prepared, what is asked, and what judges it.

Guarantees nothing itself: what `osworld_parse` made of a task file was checked there, field by field. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from guiderail.errors import InputError

Json = dict[str, Any]


class TaskFileError(InputError):
    """A task file that cannot be used; the text names file and field."""


@dataclass(frozen=True)
class Step:
    """One step of setup or postconfig: what to do, with which parameters."""

    type: str
    parameters: Json


@dataclass(frozen=True)
class Check:
    """One metric: `func(result, expected, **options)`, where result and expected are fetched by getters."""

    func: str
    result: Json | None = None
    expected: Json | None = None
    options: Json | None = None


@dataclass(frozen=True)
class OsworldTask:
    """One task file. `conj`: all (and) or any (or) of `checks` must hold. `file`: where it came from."""

    id: str
    instruction: str
    config: tuple[Step, ...]
    checks: tuple[Check, ...]
    conj: str = "and"
    postconfig: tuple[Step, ...] = ()
    apps: tuple[str, ...] = ()
    snapshot: str = ""
    source: str = ""
    proxy: bool = False
    fixed_ip: bool = False
    may_change: str = "low"
    file: str = ""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Domain and file, e.g. "os/94d95f96-..."; unique in a folder."""
        path = PurePosixPath(self.file)
        return f"{path.parent.name}/{path.stem}"

    @property
    def infeasible(self) -> bool:
        """Whether the task cannot be done, and a model that says so is right."""
        return any(c.func == "infeasible" for c in self.checks)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, before and after the episode."""
        return self.config + self.postconfig
