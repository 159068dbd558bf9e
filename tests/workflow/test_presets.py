"""Presets are complete parameter files; writing one never loses values of the user's own unasked."""

from pathlib import Path

import pytest
import yaml

from guiderail.cli import main
from guiderail.params import ParamError, load
from guiderail.workflow import presets

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", ["default", "smoke", "study", "async"])
def test_render_round_trips_and_explains(name, tmp_path):
    path = tmp_path / "params.yaml"
    presets.write(name, path)
    assert load(path) == presets.preset(name)
    assert presets.current(path) == name
    assert "group_size: " in path.read_text() and "# Rollouts per task instance." in path.read_text()
    assert presets.about(name)


@pytest.mark.parametrize("argv", [["preset"], ["preset", "list"]])
def test_listing_says_a_line_of_each(argv, capsys):
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line[2:].split("  ")[0] for line in lines]
    assert [name.strip() for name in listed] == presets.names() and "list" not in presets.names()
    assert all(
        presets.about(n) and line.endswith(presets.about(n)) for n, line in zip(presets.names(), lines, strict=True)
    )
    assert [line[2:].split()[0] for line in lines if line.startswith("*")] == [
        "default"
    ]  # the repository's params.yaml


def test_presets_differ_as_they_say():
    study = presets.preset("study")
    assert study.sweep.seed == [0, 1, 2]
    assert len(study.sweep.recipe) >= 2
    assert {r: study.rl_for(r) for r in study.sweep.recipe}["grpo_kl"].kl_coef > 0
    assert presets.preset("smoke").rl.iterations < presets.preset("default").rl.iterations


def test_own_values_are_not_overwritten(tmp_path):
    path = tmp_path / "params.yaml"
    presets.write("default", path)
    presets.write("smoke", path)  # a preset may replace a preset
    tree = yaml.safe_load(path.read_text())
    tree["rl"]["lr"] = 0.123
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ParamError, match="holds values that no preset has"):
        presets.write("default", path)
    assert load(path).rl.lr == 0.123
    presets.write("default", path, force=True)
    assert presets.current(path) == "default"


def test_unknown_preset():
    with pytest.raises(ParamError, match=r"Did you mean smoke\?"):
        presets.preset("smokee")


def test_merged_replaces_recipes_as_a_whole():
    base = {"rl": {"lr": 1, "lora": {"r": 1, "alpha": 2}}, "recipes": {"grpo": {}}}
    over = {"rl": {"lora": {"r": 3}}, "recipes": {"x": {}}}
    assert presets.merged(base, over) == {"rl": {"lr": 1, "lora": {"r": 3, "alpha": 2}}, "recipes": {"x": {}}}


def test_a_file_that_cannot_be_read_has_no_preset_and_is_not_overwritten_unasked(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("rl: {}\nrl: {}\n")
    assert presets.current(path) is None
    with pytest.raises(ParamError, match="pass --force"):
        presets.write("smoke", path)
    presets.write("smoke", path, force=True)
    assert presets.current(path) == "smoke"
