"""What an installed package must bring along besides modules."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_data_file_is_packaged():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    package = ROOT / "src/guiderail"
    data = [f for f in package.rglob("*") if f.is_file() and f.suffix not in (".py", ".pyc")]
    assert data
    for f in data:
        patterns = declared.get(".".join(f.parent.relative_to(package.parent).parts), [])
        assert any(fnmatch(f.name, p) for p in patterns), f"{f.relative_to(ROOT)}: not in package-data"
