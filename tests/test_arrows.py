"""The floors of the house: an import never runs upward, and there is no circle.

Read from the syntax tree, so imports inside functions count too. A new package or module must be given a floor here.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
# From the ground up; rooms of one floor may use each other, modules of any floor those below.
FLOORS = [
    {
        "errors",
        "seeds",
        "yaml_file",
        "service_guard",
        "curves",
        "plugins",
        "param_errors",
        "param_section",
        "progress",
        "__init__",
    },
    {
        "actions",
        "algorithms",
        "params",
        "params_chain",
        "params_cloud",
        "params_collection",
        "params_engine",
        "params_desktop",
        "params_judge",
        "params_plan",
        "params_prm",
        "params_endpoint",
        "endpoint",
        "params_train",
        "params_trainer",
        "params_tree",
        "services",
        "cluster",
        "tracking",
        "tracking_mlflow",
        "tracking_registry",
        "tracking_sender",
        "tracking_system",
        "tracking_traces",
        "workflow",
        "provenance",
    },
    {"tasks"},
    {"envs", "models"},
    {"pool", "checkpoints", "capacity"},
    {"rollout"},
    {"rewards"},
    {"train", "bench"},
    {"report"},
    {"stages"},
    {"status"},
    {"cli", "cli_around", "cli_setup", "commands", "doctor", "reference", "reference_algorithms", "__main__"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
ALONE = {"actions", "algorithms"}  # these use nothing of ours but themselves


def modules() -> dict[str, Path]:
    """Dotted name -> file; a package has the name of its folder."""
    found = {}
    for file in sorted((SRC / "guiderail").rglob("*.py")):
        parts = file.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)] = file
    return found


MODULES = modules()


def imports(module: str) -> set[str]:
    """Modules of ours that a file imports, wherever the import stands; `from package import module` is the module."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import; write the module's full name"
            inner = {f"{node.module}.{a.name}" for a in node.names}
            found |= inner & MODULES.keys() or {node.module}
    return {("guiderail.__init__" if n == "guiderail" else n) for n in found if n and n.split(".")[0] == "guiderail"}


IMPORTS = {m: imports(m) for m in MODULES}


def room(module: str) -> str:
    return module.split(".")[1]


def upward(edges: dict[str, set[str]]) -> list[str]:
    return [
        f"{a} imports {b}"
        for a, bs in edges.items()
        for b in sorted(bs)
        if FLOOR[room(b)] > FLOOR[room(a)] or (room(a) in ALONE and room(b) != room(a))
    ]


def test_every_room_has_a_floor():
    assert {room(m) for m in MODULES} <= FLOOR.keys()


def test_imports_are_of_modules_that_exist():
    assert {b for bs in IMPORTS.values() for b in bs} <= MODULES.keys()


def test_arrows_run_downward():
    assert upward(IMPORTS) == []


def test_there_is_no_circle():
    list(TopologicalSorter(IMPORTS).static_order())


@pytest.mark.parametrize(
    ("low", "high"), [("guiderail.models.x", "guiderail.rollout.types"), ("guiderail.actions.x", "guiderail.errors")]
)
def test_the_check_sees_an_arrow_that_runs_upward(low, high):
    assert upward({low: {high}}) == [f"{low} imports {high}"]


def test_the_check_sees_a_circle():
    with pytest.raises(CycleError):
        list(TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).static_order())
