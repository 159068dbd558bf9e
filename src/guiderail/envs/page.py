"""What we know of MiniWoB++ pages: where they lie, how an episode starts, how its instruction may be reworded.

Guarantees: rewording is deterministic and keeps every word of the page's own utterance.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from guiderail.envs.scripts import START


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


WORDINGS: tuple[Callable[[str], str], ...] = (
    lambda u: f"Please {_lower(u)}",
    lambda u: f"Your task: {u}",
    lambda u: f"Now {_lower(u)}",
    lambda u: f"Do this: {u}",
    lambda u: f"I want you to {_lower(u)}",
    lambda u: f"{u} Thank you.",
)

# Pages that keep timers or fields over episodes: loaded anew for each, so that a seed always gives the same episode.
RELOAD = frozenset(
    (
        *("book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy"),
        *("choose-date-medium", "moving-items", "scroll-text", "scroll-text-2"),
    )
)


def reword(utterance: str, wording: int) -> str:
    """Instruction variant `wording`: 0 the page's own words, n > 0 the n-th general rewording (cyclic)."""
    if wording < 0:
        raise ValueError(f"wording {wording}: must be 0 or more")
    return utterance if wording == 0 else WORDINGS[(wording - 1) % len(WORDINGS)](utterance)


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
