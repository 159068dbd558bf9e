"""Code blocks of the documentation, by the file they are for."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def block(page: str, title: str) -> str:
    """The one fenced block of docs/`page` whose title is `title`."""
    found = re.findall(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', (DOCS / page).read_text(), re.M | re.S)
    assert len(found) == 1, f"docs/{page} has {len(found)} blocks titled {title}"
    return found[0]


def settings(page: str) -> list[str]:
    """The untitled YAML blocks of docs/`page`: what the reader puts into params.yaml."""
    return re.findall(r"^```yaml\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


def written(folder: Path, page: str, title: str) -> Path:
    """Write a block to the file of its title below `folder`."""
    path = folder / title
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block(page, title))
    return path
