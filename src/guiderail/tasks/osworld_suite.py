"""OSWorld's tasks as a suite: every task file of the folder in GUIDERAIL_OSWORLD is a template with one instance.

Guarantees: the whole folder is checked before anything starts, a bad file is a ParamError naming file and field; only
tasks whose metrics, getters and steps are implemented are offered, and naming another one says what it lacks. A third
of
the tasks, chosen by hash of their names, is held out by default. There are no experts: these tasks measure, they do not
teach.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from guiderail.actions.types import Action
from guiderail.errors import InputError
from guiderail.params import ParamError
from guiderail.tasks.experts.scene import Decision, Facts, Scene
from guiderail.tasks.instances import derive
from guiderail.tasks.judges.registry import missing
from guiderail.tasks.osworld import OsworldTask
from guiderail.tasks.osworld_files import load_folder
from guiderail.tasks.template import Template

VARIABLE = "GUIDERAIL_OSWORLD"
MAX_STEPS = 15


def no_expert(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Nothing: there is no expert."""
    return None


def template_name(task: OsworldTask) -> str:
    """Name of a task as a template: domain and file, without the slash that ids are split at."""
    return task.name.replace("/", ".")


@lru_cache(maxsize=4)
def tasks_of(folder: str) -> dict[str, OsworldTask]:
    """All tasks by template name. Raises ParamError."""
    try:
        return {template_name(t): t for t in load_folder(folder)}
    except InputError as e:
        raise ParamError(f"provision.suite = 'osworld': {e}") from None


def folder() -> str:
    """The folder of task files. Raises ParamError when none is named or it is not there."""
    found = os.environ.get(VARIABLE, "")
    if not found or not Path(found).is_dir():
        raise ParamError(
            f"provision.suite = 'osworld': {VARIABLE} = {found!r} names no folder. Set it to the folder of "
            "OSWorld's task files (the one that holds examples/)."
        )
    return found


def templates() -> dict[str, Template]:
    """The tasks that can be judged, as templates. Raises ParamError."""
    return {name: _template(name, t) for name, t in tasks_of(folder()).items() if not missing(t)}


def why_not(name: str) -> str:
    """What keeps the task called `name` from being offered; "" when nothing does or there is no such task."""
    task = tasks_of(folder()).get(name)
    lacks = missing(task) if task is not None else []
    return f"{task.file}: not implemented: {', '.join(lacks)}" if task is not None and lacks else ""


def find(name: str) -> OsworldTask:
    """The task called `name`. Raises ValueError."""
    task = tasks_of(folder()).get(name)
    if task is None:
        raise ValueError(f"no task file for {name!r} in {folder()}")
    return task


def _template(name: str, task: OsworldTask) -> Template:
    return Template(
        name=name,
        domain=task.name.split("/")[0],
        steps=(1, MAX_STEPS),
        max_steps=MAX_STEPS,
        policy=no_expert,
        wordings=(task.instruction.replace("{", "(").replace("}", ")"),),
        heldout=derive("osworld-heldout", name) % 3 == 0,
        scripted=False,
    )
