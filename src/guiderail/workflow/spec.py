"""dvc.yaml, read once, for everyone who asks what a stage needs and makes.

Guarantees: dvc.yaml stays the single definition of cmd, deps, params and outs; the Snakemake rules, the stage runner
and the ledger all read it here. `${item.x}` becomes the wildcard `{x}`, other `${a.b}` are values of params.yaml. For
Snakemake a dependency below an output becomes that output, a directory that stages write below becomes their outputs,
and any other directory its files. Needs neither DVC nor Snakemake.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guiderail.yaml_file import YamlError, read_yaml

ITEM = re.compile(r"\$\{item\.(\w+)\}")
KEY = re.compile(r"\$\{([\w.]+)\}")
IGNORED = {"__pycache__", ".snakemake_timestamp", ".DS_Store"}


class SpecError(SystemExit):
    """dvc.yaml and params.yaml do not fit together. The text names the place and the remedy."""


@dataclass(frozen=True)
class Job:
    """One point of a stage's matrix. `address` is DVC's name for it, e.g. `rl@grpo-0`."""

    stage: str
    axes: dict[str, str]

    @property
    def address(self) -> str:
        """`stage@value-value`, values in the order of the matrix."""
        return self.stage + ("@" + "-".join(self.axes.values()) if self.axes else "")


def _read(path: str | Path) -> Any:
    try:
        return read_yaml(path)
    except YamlError as e:
        raise SpecError(str(e)) from None


def lookup(config: Mapping[str, Any], dotted: str) -> Any:
    """Value of `a.b.c` in nested mappings. Raises SpecError naming the key."""
    value: Any = config
    for k in dotted.split("."):
        if not isinstance(value, Mapping) or k not in value:
            raise SpecError(
                f"params.yaml: key `{dotted}` is missing, but dvc.yaml uses it. "
                "Add it, or run `guiderail preset default`."
            )
        value = value[k]
    return value


def files_below(path: Path) -> list[Path]:
    """`path` itself when it is a file, else all files below it in order, without caches and engine droppings."""
    if not path.is_dir():
        return [path]
    found = (p for p in sorted(path.rglob("*")) if not IGNORED & set(p.parts) and p.suffix != ".pyc")
    return [p for p in found if p.is_file()]


class Spec:
    """The stages of dvc.yaml under the values of params.yaml."""

    def __init__(self, config: Mapping[str, Any], path: str | Path = "dvc.yaml") -> None:
        self.config = config
        tree = _read(path)
        if not isinstance(tree, dict) or not isinstance(tree.get("stages"), dict):
            raise SpecError(f"{path}: has no `stages:`; restore it (git checkout {path})")
        self.stages: dict[str, dict[str, Any]] = tree["stages"]

    @classmethod
    def read(cls, params: str | Path = "params.yaml", path: str | Path = "dvc.yaml") -> Spec:
        """Spec of the files on disk."""
        return cls(_read(params) or {}, path)

    def _pattern(self, text: str) -> str:
        text = ITEM.sub(r"{\1}", text)
        return KEY.sub(lambda m: str(lookup(self.config, m[1])), text)

    def _paths(self, name: str, *kinds: str) -> list[str]:
        entries = [e for kind in kinds for e in self.stages[name].get(kind, [])]
        return [self._pattern(next(iter(e)) if isinstance(e, dict) else e) for e in entries]

    def axes(self, name: str) -> dict[str, list[str]]:
        """Axis -> values, as text, in the order of `matrix:` (which is the order of the DVC address)."""
        matrix: dict[str, Any] = self.stages[name].get("matrix", {})
        axes = {}
        for k, v in matrix.items():
            m = KEY.fullmatch(v) if isinstance(v, str) else None
            axes[k] = [str(x) for x in (lookup(self.config, m[1]) if m else v)]
        return axes

    def jobs(self, name: str | None = None) -> Iterator[Job]:
        """All points of one stage, or of all stages in the order of dvc.yaml."""
        for n in [name] if name else self.stages:
            axes = self.axes(n)
            for point in itertools.product(*axes.values()):
                yield Job(n, dict(zip(axes, point, strict=True)))

    def outs(self, name: str) -> list[str]:
        """Output patterns of a stage, with `{axis}` wildcards."""
        return self._paths(name, "outs", "metrics", "plots")

    def job_outs(self, job: Job) -> list[str]:
        """Concrete outputs of one job."""
        return [o.format(**job.axes) for o in self.outs(job.stage)]

    def out(self, name: str) -> str:
        """The one output pattern of a stage."""
        (pattern,) = self.outs(name)
        return pattern

    def all_outs(self) -> list[str]:
        """Every concrete output of the chain."""
        return [o for job in self.jobs() for o in self.job_outs(job)]

    def raw_deps(self, name: str) -> list[str]:
        """Dependency patterns as dvc.yaml writes them."""
        return self._paths(name, "deps")

    def deps(self, name: str) -> list[str]:
        """Dependency patterns as Snakemake needs them: outputs of stages and single files. May hold `{axis}`
        wildcards.
        """
        patterns = [(p, p.rstrip("/") + "/") for n in self.stages for p in self.outs(n)]
        result: list[str] = []
        for dep in self.raw_deps(name):
            inside = [p for p, folder in patterns if dep == p or dep.startswith(folder)]
            below = [o for o in self.all_outs() if o.startswith(dep.rstrip("/") + "/")] if "{" not in dep else []
            plain = [] if "{" in dep else [f.as_posix() for f in files_below(Path(dep))]
            result += inside or below or plain or [dep]
        return list(dict.fromkeys(result))

    def job_deps(self, job: Job) -> list[str]:
        """`deps` of one job, concrete."""
        return [d.format(**job.axes) for d in self.deps(job.stage)]

    def command(self, job: Job) -> str:
        """The command line of one job."""
        text = ITEM.sub(lambda m: job.axes[m[1]], self.stages[job.stage]["cmd"])
        return KEY.sub(lambda m: str(lookup(self.config, m[1])), text)

    def param_keys(self, name: str, axes: Mapping[str, str]) -> list[str]:
        """Dotted keys of params.yaml that a job depends on."""
        return [self._pattern(k).format(**axes) for k in self.stages[name].get("params", [])]

    def params(self, name: str) -> Callable[[Mapping[str, str]], str]:
        """Function of the wildcards giving ONE canonical JSON text of the command and all parameters of the job.

        One text, because Snakemake compares parameters as a set: two that swap values would go unseen. The command is
        part of it because the rule's own shell line is always the same.
        """
        cmd = self.stages[name]["cmd"]

        def text(wildcards: Mapping[str, str]) -> str:
            keys = self.param_keys(name, dict(wildcards.items()))
            return json.dumps({"cmd": cmd, **{k: lookup(self.config, k) for k in keys}}, sort_keys=True)

        return text
