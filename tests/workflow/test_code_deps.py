"""dvc.yaml lists all code a stage runs: a change of any module it imports must re-run it."""

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml

from guiderail.bench import evaluate as bench
from guiderail.stages import evaluate_recorded, prm

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
# Plumbing: how stages are started, stored and watched, not what they compute (params.py: its values are tracked).
PLUMBING = {
    "guiderail",
    "guiderail.params",
    "guiderail.param_section",
    "guiderail.params_cloud",
    "guiderail.params_collection",
    "guiderail.params_engine",
    "guiderail.params_desktop",
    "guiderail.params_train",
    "guiderail.params_trainer",
    "guiderail.params_judge",
    "guiderail.params_plan",
    "guiderail.params_prm",
    "guiderail.params_endpoint",
    "guiderail.curves",
    "guiderail.errors",
    "guiderail.param_errors",
    "guiderail.plugins",
    "guiderail.progress",
    "guiderail.services",
    "guiderail.service_guard",
    "guiderail.tracking",
    "guiderail.tracking_mlflow",
    "guiderail.tracking_registry",
    "guiderail.tracking_sender",
    "guiderail.tracking_system",
    "guiderail.tracking_traces",
}
PLUMBING |= {"guiderail.provenance", "guiderail.stages"} | {
    f"guiderail.stages.{m}" for m in ("context", "paths", "meter", "describe", "promotion")
}
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def file_of(module: str) -> Path | None:
    path = SRC / Path(*module.split("."))
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.exists()), None)


@cache
def imported(module: str) -> frozenset[str]:
    """Modules of ours that `module` imports anywhere in its file."""
    found = set()
    tree = ast.parse(file_of(module).read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        found |= {n for n in names if n.split(".")[0] == "guiderail" and file_of(n)}
    return frozenset(found)


def reach(module: str) -> set[str]:
    seen, todo = set(), [module]
    while todo:
        m = todo.pop()
        if m not in seen and m not in PLUMBING and not m.startswith("guiderail.workflow"):
            seen.add(m)
            todo += imported(m)
    return seen


@pytest.mark.parametrize("stage", STAGES)
def test_all_code_of_a_stage_is_listed(stage):
    assert file_of(f"guiderail.stages.{stage}") is not None, f"dvc.yaml names stage {stage}, which has no module"
    deps = [d for d in STAGES[stage]["deps"] if d.startswith("src/")]
    for module in sorted(reach(f"guiderail.stages.{stage}")):
        file = file_of(module).relative_to(ROOT).as_posix()
        assert any(file == d or file.startswith(d + "/") for d in deps), (
            f"{stage} runs {file}: add it to its deps in dvc.yaml"
        )


# What is remembered beside DVC (base and SFT for all recipes, judges) is keyed by code too. Left out: what only names
# checkpoints, error types, and the way of evaluating that is not the one remembered there.
NAMES = {"guiderail.checkpoints", "guiderail.checkpoints.manifest"}
RECORDED = {"guiderail.rewards.match", "guiderail.rewards.match_reference", "guiderail.stages.evaluate_recorded"}
REMEMBERED = {
    "evaluate": (bench.CODE, NAMES | RECORDED),
    "evaluate_recorded": (evaluate_recorded.CODE, NAMES | {"guiderail.envs", "guiderail.envs.types"}),
    "prm": (prm.CODE, set()),
}


@pytest.mark.parametrize("stage", REMEMBERED)
def test_what_is_remembered_is_keyed_by_all_code_that_makes_it(stage):
    code, left_out = REMEMBERED[stage]
    assert all((SRC / "guiderail" / part).exists() for part in code)
    files = {m: file_of(m).relative_to(SRC / "guiderail").as_posix() for m in reach(f"guiderail.stages.{stage}")}
    lacking = {m for m, file in files.items() if not any(file == c or file.startswith(f"{c}/") for c in code)}
    assert lacking - left_out == set()


@pytest.mark.parametrize("stage", STAGES)
def test_listed_code_exists(stage):
    for dep in STAGES[stage]["deps"]:
        if dep.startswith("src/") and not dep.startswith("src/guiderail/stages/"):
            assert (ROOT / dep).exists(), dep


# What a stage imports tells which plugins it can run: suites, a pool's server, the RL loop.
PLUGGED = {
    "tasks": "guiderail.tasks.suites",
    "providers": "guiderail.pool.local",
    "algorithms": "guiderail.train.rl",
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", PLUGGED)
def test_a_stage_depends_on_the_plugins_it_can_run(stage, kind):
    runs = PLUGGED[kind] in reach(f"guiderail.stages.{stage}")
    listed = f"plugins/{kind}" in STAGES[stage]["deps"]
    assert listed == runs, f"{stage} can run plugins/{kind}: {runs}; in its deps in dvc.yaml: {listed}"
    assert (ROOT / "plugins" / kind).is_dir()
