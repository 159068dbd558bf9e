"""Reading dvc.yaml: patterns, jobs, the parameters of a job as one text."""

import json
from pathlib import Path

import pytest

from guiderail.workflow.ledger import vouched
from guiderail.workflow.spec import Job, Spec, SpecError, files_below

YAML = """
stages:
  a:
    cmd: tool a
    deps: [code, "${model.path}"]
    params: [a]
    outs: [results/a]
  b:
    matrix: {recipe: "${sweep.recipe}", seed: "${sweep.seed}"}
    cmd: tool b --recipe ${item.recipe} --seed ${item.seed}
    deps: [results/a/one.json]
    params: [b.lr, "recipes.${item.recipe}"]
    outs: ["results/b/${item.recipe}/seed${item.seed}"]
  c:
    cmd: tool c
    deps: [results/b]
    outs: [results/c]
"""
CONFIG = {
    "sweep": {"recipe": ["x", "y"], "seed": [0, 1]},
    "model": {"path": "m"},
    "a": 1,
    "b": {"lr": 2, "other": 3},
    "recipes": {"x": {}, "y": {"k": 1}},
}


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text(YAML)
    Path("code/__pycache__").mkdir(parents=True)
    for f in ("code/z.py", "code/__pycache__/z.pyc", "code/.snakemake_timestamp", "m"):
        Path(f).touch()
    return Spec(CONFIG)


def test_jobs_and_addresses(spec):
    assert [j.address for j in spec.jobs()] == ["a", "b@x-0", "b@x-1", "b@y-0", "b@y-1", "c"]
    assert spec.command(Job("b", {"recipe": "y", "seed": "1"})) == "tool b --recipe y --seed 1"
    assert spec.outs("b") == ["results/b/{recipe}/seed{seed}"]


def test_deps_become_outputs_or_files(spec):
    assert spec.deps("a") == ["code/z.py", "m"]
    assert spec.deps("b") == ["results/a"]
    assert spec.deps("c") == [f"results/b/{r}/seed{s}" for r in "xy" for s in (0, 1)]


def test_params_are_one_canonical_text(spec):
    text = spec.params("b")({"recipe": "y", "seed": "0"})
    assert json.loads(text) == {
        "b.lr": 2,
        "recipes.y": {"k": 1},
        "cmd": "tool b --recipe ${item.recipe} --seed ${item.seed}",
    }
    assert text == json.dumps(json.loads(text), sort_keys=True)


def test_missing_key_is_named(spec):
    del CONFIG_COPY["a"]
    with pytest.raises(SpecError, match="key `a` is missing"):
        Spec(CONFIG_COPY).params("a")({})


CONFIG_COPY = dict(CONFIG)


def test_nothing_below_a_dirty_stage_is_vouched_for(spec):
    assert vouched(spec, set()) == [j.address for j in spec.jobs()]
    assert vouched(spec, {"b@x-1"}) == ["a", "b@x-0", "b@y-0", "b@y-1"]
    assert vouched(spec, {"a"}) == []
    assert vouched(spec, {"elsewhere/dvc.yaml:z"}) == [j.address for j in spec.jobs()]


def test_files_below_leaves_droppings_out(spec):
    assert files_below(Path("code")) == [Path("code/z.py")]
