"""A laptop's training loads no Ray: not the rl stage, not its workers, nor anything they may import on the way."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
ONLY_WITH_RAY = "guiderail.stages.rl_ray"  # the one door, opened by trainer.kind: ray
TRAINING = ("guiderail.stages.rl", "guiderail.stages.rollout_worker")
STARTS = (*TRAINING, "guiderail.stages.runner", "guiderail.cli")


def file_of(module: str) -> Path | None:
    path = SRC / Path(*module.split("."))
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.exists()), None)


@cache
def named(module: str) -> frozenset[str]:
    """What a file of ours imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(file_of(module).read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    return frozenset(found)


def reached(starts: tuple[str, ...], shut: str = ONLY_WITH_RAY) -> Iterator[str]:
    """Our modules that can be loaded on the way from `starts` without going through `shut`."""
    todo, seen = list(starts), {shut}
    while todo:
        module = todo.pop()
        if module in seen or file_of(module) is None:
            continue
        seen.add(module)
        yield module
        todo += [n for n in named(module) if n.startswith("guiderail.")]


def test_one_module_alone_leads_to_ray():
    def loads_ray(module):
        return any(n.split(".")[0] == "ray" for n in named(module))

    assert [m for m in reached(STARTS) if loads_ray(m)] == []
    assert any(loads_ray(m) for m in reached(STARTS, shut=""))  # through the door there is something to see


def test_all_that_training_in_one_process_imports_imports_no_ray():
    """Ours and whatever the libraries load: in a fresh process, everything on the way, functions' imports too."""
    modules = sorted(set(reached(TRAINING)))
    assert {"guiderail.train.rl", "guiderail.rollout.engines.hf", "guiderail.rewards.prm_judge"} <= set(modules)
    code = f"import sys\nfor m in {modules!r}: __import__(m)\n"
    code += "print(*sorted(m for m in sys.modules if m.split('.')[0] == 'ray'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
