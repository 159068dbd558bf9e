"""What we know of MiniWoB++ pages: where they lie, how an episode starts.

Guarantees: only pages of the installed `miniwob` package are named, and those that a loaded suite of the user's own
brings along. Other wordings of an instruction: `tasks.miniwob` and the suite's templates.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from guiderail.envs.scripts import START
from guiderail.tasks import miniwob
from guiderail.tasks.suites import own_suite
from guiderail.tasks.template import Template
from guiderail.tasks.types import TaskSpec

# Pages that keep timers or fields over episodes: loaded anew for each, so that a seed always gives the same episode.
RELOAD = frozenset(
    (
        *("book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy"),
        *("choose-date-medium", "moving-items", "scroll-text", "scroll-text-2"),
    )
)


def start_script(seed: int) -> str:
    """Script that starts the episode of `seed`; its value is the utterance, or null when no task page is there."""
    return START.replace("SEED", json.dumps(str(seed)))


@cache
def pages_dir() -> Path:
    """Folder of the task pages of the installed `miniwob` package."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package miniwob is not installed: pip install miniwob")
    return Path(spec.origin).parent / "html" / "miniwob"


@cache
def page_url(template: str) -> str:
    """file:// address of a template's page. Raises ValueError when there is no such page."""
    path = pages_dir() / f"{template}.html"
    if not path.is_file() or path.parent != pages_dir():
        raise ValueError(f"task template {template!r}: no page {path.name} in the miniwob package")
    return path.as_uri()


def page_of(task: TaskSpec) -> str:
    """file:// address of the task's page. Raises ValueError when there is no such page."""
    suite = own_suite(task.suite)
    if suite is None or task.template not in suite.pages:
        return page_url(task.template)
    return _written(suite.pages[task.template])


def check_wording(task: TaskSpec) -> None:
    """Raises ValueError when the task's template has no wording of that number."""
    template = _own_template(task)
    if template is None:
        miniwob.check_wording(task.template, task.wording)
    elif task.wording:
        template.check_wording(task.wording)


def reword(task: TaskSpec, instruction: str) -> str:
    """`instruction` of the page in the wording that the task asks for. Raises ValueError (see `tasks.miniwob`)."""
    template = _own_template(task)
    if template is None:
        return miniwob.reword(task.template, instruction, task.wording)
    return template.reword(instruction, task.wording)


def _own_template(task: TaskSpec) -> Template | None:
    suite = own_suite(task.suite)
    return None if suite is None else suite.templates.get(task.template)


@cache
def _written(html: str) -> str:
    """Address of a file that holds `html`, with relative links into the `miniwob` package; gone with the process."""
    base = f'<base href="{pages_dir().as_uri()}/">'
    head = html.find("<head>")
    whole = html[: head + 6] + base + html[head + 6 :] if head >= 0 else base + html
    path = _own_pages() / f"{hashlib.sha256(html.encode()).hexdigest()[:16]}.html"
    path.write_text(whole, encoding="utf-8")
    return path.as_uri()


@cache
def _own_pages() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="guiderail-pages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
