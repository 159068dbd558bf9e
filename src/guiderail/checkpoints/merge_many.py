"""Several checkpoints of one lineage merged into one Hugging Face folder: average, task arithmetic, TIES.

Guarantees: models are verified by digest and must share an ancestor by their manifests before a weight is read;
adapters are folded on the way; tensors equal in all models are copied bit for bit; the result's manifest names all of
them, their ancestors and every task any of them was trained on. Memory holds one file of the result and one tensor of
each model. Whether the result is any good is not asked here: see `stages.merge_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.arithmetic import add_tasks, add_ties, average, threshold
from guiderail.checkpoints.effective import Effective
from guiderail.checkpoints.merge import MergeError
from guiderail.checkpoints.weights import rewrite

Method = Literal["average", "task_arithmetic", "ties"]
Change = Callable[[Tensor], Tensor]
METHODS: tuple[Method, ...] = ("average", "task_arithmetic", "ties")


@dataclass(frozen=True)
class Recipe:
    """How to merge. weights: one per model. scale: lambda, of task_arithmetic and ties. density: share of each task
    vector that ties keeps."""

    method: Method
    weights: tuple[float, ...]
    scale: float = 1.0
    density: float = 0.2


@dataclass(frozen=True)
class Family:
    """Models and what binds them: the digest of their nearest common ancestor, all ancestors, all tasks."""

    models: tuple[m.Link, ...]
    common: str
    ancestors: tuple[str, ...]
    trained_on: m.TrainedOn


def family(models: Sequence[Path]) -> Family:
    """Read lineages and find the nearest common ancestor (which may be one of the models). Raises MergeError,
    ManifestError."""
    if len(models) < 2:
        raise MergeError(f"{len(models)} model: give two or more to merge")
    links, chains, trained = [], [], m.TrainedOn()
    for folder in models:
        link, (ancestors, tasks) = m.Link.to(folder), _lineage(folder)
        links.append(link)
        chains.append((*ancestors, link.sha256))
        trained = trained.union(tasks)
    digests = [link.sha256 for link in links]
    for link in links:
        if digests.count(link.sha256) > 1:
            raise MergeError(f"{link.path}: its weights are given twice; name each model once")
    shared = [d for d in chains[0] if all(d in c for c in chains[1:])]
    if not shared:
        lines = [f"{f}: from {c[0][:12]}" for f, c in zip(models, chains, strict=True)]
        raise MergeError(
            f"no common ancestor by their manifests ({'; '.join(lines)}): only checkpoints of one lineage can be merged"
        )
    order = dict.fromkeys(d for c in chains for d in c)
    return Family(tuple(links), shared[-1], tuple(order), trained)


def _lineage(folder: Path) -> tuple[tuple[str, ...], m.TrainedOn]:
    """(ancestors, tasks) of a checkpoint; nothing for a base model without manifest."""
    if not (folder / m.FILE).is_file():
        return (), m.TrainedOn()
    found = m.verify_files(folder)
    return found.ancestors, found.trained_on


def ancestor(model: Path, digest: str) -> Path:
    """Folder of an ancestor, found along the manifests' `start` links and checked by digest. Raises MergeError when
    the way is lost."""
    at = model
    while m.weights_digest(at) != digest:
        found = m.read(at) if (at / m.FILE).is_file() else None
        if found is None or found.start is None:
            raise MergeError(f"{model}: its ancestor {digest[:12]} is not found from {at}; give its folder with --base")
        at = m.check_link(found.start, "start", at)
    return at


def base_of(models: Sequence[Path], found: Family, given: Path | None) -> Path:
    """The common start of all task vectors: `given`, or the nearest common ancestor. Raises MergeError."""
    base = given or ancestor(models[0], found.common)
    digest = m.weights_digest(base)
    if digest not in found.ancestors or any(digest not in _chain(x) for x in models):
        raise MergeError(f"{base}: is not an ancestor of all models; task vectors need a common start")
    same = [x for x, link in zip(models, found.models, strict=True) if link.sha256 == digest]
    if same:
        raise MergeError(f"{same[0]}: is the start of the others, so its task vector is 0; leave it out, or average")
    return base


def _chain(folder: Path) -> tuple[str, ...]:
    return (*_lineage(folder)[0], m.weights_digest(folder))


def merge_models(
    models: Sequence[Path], out: Path, recipe: Recipe, *, base: Path | None = None, dtype: torch.dtype | None = None
) -> m.Manifest:
    """Merge `models` into the folder `out` and write its manifest. Layout, processor and tokenizer are the first's.

    base: start of the task vectors (average needs none). dtype: as in `weights.rewrite`. Raises MergeError,
    ManifestError, WeightsError; nothing is written before all models are read over.
    """
    if len(recipe.weights) != len(models):
        raise MergeError(f"{len(recipe.weights)} weights for {len(models)} models: give one each")
    if recipe.method == "average" and not sum(recipe.weights) > 0:
        raise MergeError(f"weights {list(recipe.weights)}: their sum must be above 0 to average")
    found = family(models)
    start = base_of(models, found, base) if recipe.method != "average" else None
    ends = [Effective(x) for x in models]
    zero = Effective(start) if start else None
    for other in [*ends[1:], *([zero] if zero else [])]:
        _alike(ends[0], other)
    change = _change(recipe, ends, zero)
    rewrite(ends[0].folder, out, {name: change(name) for name in ends[0].forms}, dtype)
    told = [{**x.model_dump(), "weight": w} for x, w in zip(found.models, recipe.weights, strict=True)]
    method: dict[str, Any] = {"method": recipe.method, "models": told}
    if start:
        method |= {"base": m.Link.to(start).model_dump(), "scale": recipe.scale}
    if recipe.method == "ties":
        method |= {"density": recipe.density}
    return m.write(
        out,
        m.Manifest(
            kind="merged",
            stage="merge_models",
            parent=found.models[0],
            start=found.models[0],
            ancestors=found.ancestors,
            trained_on=found.trained_on,
            method=method,
        ),
    )


def _alike(one: Effective, other: Effective) -> None:
    names = one.forms.keys() ^ other.forms.keys()
    names |= {n for n in one.forms.keys() & other.forms.keys() if one.forms[n].shape != other.forms[n].shape}
    if names:
        raise MergeError(f"{one.checkpoint} and {other.checkpoint} do not hold the same tensors: {sorted(names)[:5]}")


def _change(recipe: Recipe, ends: list[Effective], zero: Effective | None) -> Callable[[str], Change]:
    """name -> the merged tensor of that name."""
    if zero is None:
        return lambda n: lambda _: average([e.tensor(n) for e in ends], recipe.weights)
    if recipe.method == "task_arithmetic":
        return lambda n: lambda _: add_tasks(zero.tensor(n), [e.tensor(n) for e in ends], recipe.weights, recipe.scale)

    def task(end: Effective) -> Iterator[Tensor]:
        for name in end.forms:
            yield end.tensor(name).float() - zero.tensor(name).float()

    cut = [threshold(lambda e=e: task(e), recipe.density) for e in ends]  # type: ignore[misc]
    return lambda n: lambda _: add_ties(zero.tensor(n), [e.tensor(n) for e in ends], recipe.weights, recipe.scale, cut)
