"""The desktop suite's templates: every file of `tasks/` with its expert."""

from __future__ import annotations

from guiderail.tasks.desktop.experts import EXPERTS
from guiderail.tasks.desktop.template import Instance, instance, sources, template
from guiderail.tasks.template import Template
from guiderail.tasks.types import TaskSpec

SOURCES = sources()
TEMPLATES: dict[str, Template] = {name: template(source, EXPERTS[name]) for name, source in SOURCES.items()}
"""All templates by name."""


def make(task: TaskSpec) -> Instance:
    """The instance of a task. Raises ValueError for a template or wording that does not exist."""
    if task.template not in SOURCES:
        raise ValueError(f"{task.template}: no template of suite {task.suite}; there are: {', '.join(SOURCES)}")
    TEMPLATES[task.template].check_wording(task.wording)
    return instance(SOURCES[task.template], task.seed, task.wording)
