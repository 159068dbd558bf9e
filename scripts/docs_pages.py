"""Hook of mkdocs: adds the pages made from the code, and puts pages that the menu does not name under "Parts"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


def on_config(config: Any) -> Any:
    """Complete the menu: a new page shows up without an entry of its own."""
    named = set(_paths(config.nav))
    loose = [p.name for p in sorted(Path(config.docs_dir).glob("*.md")) if p.name not in named]
    parts = next(entry for entry in config.nav if "Parts" in entry)
    parts["Parts"] += loose
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    from guiderail.reference import pages

    for path, text in pages(ROOT).items():
        files.append(File.generated(config, path, content=text))
    return files


def _paths(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [path for part in parts for path in _paths(part)]
