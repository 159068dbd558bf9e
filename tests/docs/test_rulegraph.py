"""The rule graph that the README shows has every stage (`make figure` draws it again)."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_every_stage_stands_in_the_picture():
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", (ROOT / "docs/rulegraph.svg").read_text())
    assert sorted(shown) == sorted([*yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"], "all"])
