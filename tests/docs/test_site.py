"""The site builds without a warning, needs nothing from elsewhere, and says nothing of code that is not there."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import DOCS

from guiderail.params import Params
from guiderail.reference import pages
from guiderail.reference_algorithms import ALGORITHMS

ROOT = DOCS.parent
TESTS = [t for *_, tests in ALGORITHMS for t in tests]


@pytest.fixture(scope="module")
def made():
    return pages(ROOT)


def test_every_parameter_is_listed_with_what_it_re_runs(made):
    page = made["reference/params.md"]
    assert set(re.findall(r"^## (\w+)$", page, re.M)) == set(Params.model_fields)
    (row,) = re.findall(r"^\| `rl\.lr` .*$", page, re.M)
    assert row.endswith("| rl |")
    assert re.search(r"^\| `demos\.per_template` .*\| demos \|$", page, re.M)
    assert re.search(r"^\| `env\.slots` .*\| - \|$", page, re.M)  # a knob of the machine
    assert re.search(r"^\| `prompt\.codec` .*\| sft, prm, rl, merge, evaluate \|$", page, re.M)


def test_commands_routes_and_columns_are_listed(made):
    assert "### evaluate" in made["reference/cli.md"] and "--benchmark BENCHMARK" in made["reference/cli.md"]
    assert "## POST /v1/step" in made["reference/http.md"] and "| `stale_token` | 409 |" in made["reference/http.md"]
    assert "| `weight_version` | string |" in made["reference/files.md"]
    assert "/" + "work/" not in "".join(made.values()) and str(ROOT) not in "".join(made.values())


def test_pages_are_pure(made):
    assert pages(ROOT) == made


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_of_a_formula_exist(name):
    file, _, function = name.partition("::")
    source = (ROOT / file).read_text()
    assert not function or f"def {function}(" in source


class Links(HTMLParser):
    """Addresses that a browser loads by itself."""

    def __init__(self):
        super().__init__()
        self.loaded = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") not in ("canonical",):
            self.loaded.append(found.get("href", ""))


def test_it_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("material", reason="the docs extra is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=600, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    site = tmp_path / "site"
    for page in ("index", "tutorial", "howto/task", "reference/params", "explanation/algorithms", "pool"):
        assert (site / f"{page}.html").is_file(), page
    for file in site.rglob("*.html"):
        parser = Links()
        parser.feed(file.read_text())
        assert [x for x in parser.loaded if re.match(r"(https?:)?//", x)] == [], file.name
    for css in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", css.read_text()), css.name


def test_loose_pages_join_the_menu():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from docs_pages import on_config
    finally:
        sys.path.pop(0)

    class Config:
        docs_dir = str(DOCS)

        def __init__(self):
            self.nav = [{"Start": "index.md"}, {"Parts": [{"The pool": "pool.md"}]}]

    parts = on_config(Config()).nav[1]["Parts"]
    assert parts[0] == {"The pool": "pool.md"} and "desktop.md" in parts and "pool.md" not in parts
    assert Path(DOCS / "desktop.md").is_file()
