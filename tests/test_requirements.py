"""What is pinned can be installed where the README says it can."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PINNED = [Requirement(x) for x in (ROOT / "requirements.lock").read_text().splitlines() if x and x[0] != "#"]
PYTHONS = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])


def test_the_oldest_python_takes_every_pinned_package() -> None:
    """Debian 12 has 3.11.2; a package that wants a later 3.11 would stop the first command of the README there."""
    oldest = min(str(s.version) for s in PYTHONS if s.operator == ">=") + ".0"
    assert oldest == "3.11.0"
    refused = {}
    for pin in PINNED:
        try:
            wants = metadata.metadata(pin.name).get("Requires-Python") or ""
        except metadata.PackageNotFoundError:
            continue
        if oldest not in SpecifierSet(wants):
            refused[pin.name] = wants
    assert refused == {}


def test_every_package_is_pinned_to_one_version_and_none_to_an_address() -> None:
    assert len(PINNED) > 100
    for pin in PINNED:
        assert [s.operator for s in pin.specifier] == ["=="] and pin.url is None, pin


@pytest.mark.parametrize("group", ["dependencies", "optional-dependencies"])
def test_the_lock_holds_the_lower_bounds(group: str) -> None:
    """Where both name a package, its pin is not below what the project asks for."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get(group, [])
    wanted = asked if isinstance(asked, list) else [x for extra in asked.values() for x in extra]
    pins = {p.name.lower().replace("_", "-"): next(iter(p.specifier)).version for p in PINNED}
    for x in map(Requirement, wanted):
        if version := pins.get(x.name.lower().replace("_", "-")):
            assert version in x.specifier, f"{x} is pinned to {version}"
