"""Which desktop tasks there are: one book per suite, found by the suite's name.

A suite adds its book to `BOOKS`: a function from a TaskSpec to a `DesktopTask`, or the text "module:function" that is
imported when it is first asked for. `blank` is the desktop itself, without a task.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from guiderail.actions.types import Action, Answer, Finish
from guiderail.envs.machine import Machine
from guiderail.tasks.types import TaskSpec


@dataclass(frozen=True)
class Said:
    """What the agent said to the judge: its claim ("" = none, "success", "failure"), its answers in order."""

    claim: str = ""
    answers: tuple[str, ...] = ()
    steps: int = 0

    def heard(self, action: Action) -> Said:
        """With what `action` says."""
        match action:
            case Finish(status):
                return replace(self, claim=status, steps=self.steps + 1)
            case Answer(text):
                return replace(self, answers=(*self.answers, text), steps=self.steps + 1)
        return replace(self, steps=self.steps + 1)


class DesktopTask(Protocol):
    """One task on a desktop. `setup_s`, `judge_s`: seconds that its setup and its judge may take beyond a call's."""

    @property
    def instruction(self) -> str:
        """What the agent is told."""
        ...

    @property
    def setup_s(self) -> float:
        """See above."""
        ...

    @property
    def judge_s(self) -> float:
        """See above."""
        ...

    async def setup(self, machine: Machine) -> None:
        """Prepare a fresh desktop. Raises Refusal, OSError, ValueError, InfraError: the episode is not begun then."""
        ...

    async def judge(self, machine: Machine, said: Said) -> float:
        """Raw reward of the present state, at any time and more than once. What it raises is a judge_error."""
        ...


@runtime_checkable
class Watched(Protocol):
    """A `DesktopTask` that knows what should not have changed."""

    async def side_effects(self, machine: Machine) -> list[str]:
        """What changed since setup that the judge does not look at. Raises Refusal, InfraError."""
        ...


Book = Callable[[TaskSpec], DesktopTask]


@dataclass(frozen=True)
class Blank:
    """The desktop as it is; reward 0."""

    instruction: str = "Look at the desktop."
    setup_s: float = 0.0
    judge_s: float = 0.0

    async def setup(self, machine: Machine) -> None:
        """Nothing."""

    async def judge(self, machine: Machine, said: Said) -> float:
        """0."""
        return 0.0


def blank(task: TaskSpec) -> DesktopTask:
    """The book of suite `blank`. Raises ValueError for another template than "blank"."""
    if task.template != "blank":
        raise ValueError(f"suite blank has no template {task.template!r}; it has: blank")
    return Blank()


BOOKS: dict[str, Book | str] = {
    "blank": blank,
    "desktop": "guiderail.envs.osworld_book:desktop_book",
    "desktop_office": "guiderail.envs.osworld_book:desktop_book",
    "osworld": "guiderail.envs.osworld_book:osworld_book",
}


def find(task: TaskSpec) -> DesktopTask:
    """The desktop task of `task`. Raises ValueError for a suite or a template that does not exist."""
    book = BOOKS.get(task.suite)
    if book is None:
        raise ValueError(f"no desktop tasks of suite {task.suite!r}; there are: {', '.join(sorted(BOOKS))}")
    if isinstance(book, str):
        module, _, name = book.partition(":")
        book = BOOKS[task.suite] = getattr(importlib.import_module(module), name)
        assert callable(book)
    return book(task)
