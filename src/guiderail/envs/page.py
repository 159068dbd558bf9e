"""What we know of MiniWoB++ pages: where they lie, how an episode starts.

Guarantees: only pages of the installed `miniwob` package are named. Other wordings of an instruction: `tasks.miniwob`.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

from guiderail.envs.scripts import START

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
