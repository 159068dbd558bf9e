"""The suites of desktop templates: every file of `tasks/` and of `office/` with its expert.

`desktop` needs the light programs of a local desktop, `desktop_office` LibreOffice Calc and Writer too. They are two
suites, so that what is drawn from `desktop` is the same on machines with and without LibreOffice.
"""

from __future__ import annotations

from guiderail.tasks.desktop.experts import EXPERTS
from guiderail.tasks.desktop.office_experts import OFFICE_EXPERTS
from guiderail.tasks.desktop.template import FOLDERS, Instance, Source, instance, sources, template
from guiderail.tasks.template import Template
from guiderail.tasks.types import TaskSpec

SOURCES: dict[str, dict[str, Source]] = {suite: sources(folder, suite) for suite, folder in FOLDERS.items()}
"""Suite -> template -> its file."""
_EXPERTS = {"desktop": EXPERTS, "desktop_office": OFFICE_EXPERTS}
TEMPLATES: dict[str, dict[str, Template]] = {
    suite: {name: template(source, _EXPERTS[suite][name]) for name, source in found.items()}
    for suite, found in SOURCES.items()
}
"""Suite -> template, by name."""


def make(task: TaskSpec) -> Instance:
    """The instance of a task. Raises ValueError for a suite, template or wording that does not exist."""
    known = SOURCES.get(task.suite, {})
    if task.template not in known:
        raise ValueError(f"{task.template}: no template of suite {task.suite}; there are: {', '.join(known)}")
    TEMPLATES[task.suite][task.template].check_wording(task.wording)
    return instance(known[task.template], task.seed, task.wording)
