"""Splits: which task instances are for training, for testing, and for endless RL; as a hashed manifest.

Guarantees: a manifest is a pure function of its parameters. Instance seeds carry their namespace in the low bits, so
train, fresh, held-out and RL instances can never share a seed, whatever is hashed. Within a namespace the instances of
a template are distinct seeds. Does not guarantee that two seeds draw different pages: small pages (three tabs) repeat
themselves across any split.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from guiderail.errors import Explained, InputError
from guiderail.params import Provision
from guiderail.tasks.instances import NAMESPACES as NAMESPACES
from guiderail.tasks.instances import derive as derive
from guiderail.tasks.instances import instance_seed as instance_seed
from guiderail.tasks.instances import namespace_of as namespace_of
from guiderail.tasks.manifest_file import AGAIN, check_shape, read
from guiderail.tasks.suites import choose, get_suite
from guiderail.tasks.types import Split, TaskSpec

VERSION = 1
Manifest = dict[str, Any]


class OverlapError(Explained, ValueError):
    """A checkpoint was trained on tasks it is about to be tested on."""


def build_manifest(params: Provision) -> Manifest:
    """The manifest of `params`: suite, version, task_seed, wordings, template lists, splits and `hash`.

    Instance i of a template has wording i modulo `params.wordings`. Raises ParamError on names that do not exist.
    """
    suite, train, heldout = choose(params)
    counts = (params.train_instances, params.fresh_instances, params.heldout_instances)
    if suite.single:  # a fresh instance would be the trained one again
        counts = (1, 0, 1)
    plan: tuple[tuple[Split, tuple[str, ...], int], ...] = (
        ("train", train, counts[0]),
        ("fresh", train, counts[1]),
        ("heldout", heldout, counts[2]),
    )
    splits = {
        split: [
            _spec(suite.name, name, seed, split, i % params.wordings).to_json()
            for name in names
            for i, seed in enumerate(_seeds(split, params.task_seed, name, count))
        ]
        for split, names, count in plan
    }
    manifest: Manifest = {
        "suite": suite.name,
        "version": VERSION,
        "task_seed": params.task_seed,
        "wordings": params.wordings,
        "train_templates": list(train),
        "heldout_templates": list(heldout),
        "splits": splits,
    }
    manifest["hash"] = manifest_hash(manifest)
    check_manifest(manifest)
    return manifest


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON (sorted keys, no blanks, UTF-8) of everything but `hash`."""
    body = {k: v for k, v in manifest.items() if k != "hash"}
    return hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


def load_manifest(path: str | Path) -> Manifest:
    """Read a manifest and check it. Raises InputError when its hash, version, shape or splits are not right."""
    manifest = read(path)
    found, wanted = manifest.get("hash"), manifest_hash(manifest)
    if found != wanted:
        raise InputError(f"{path}: hash is {found}, its content gives {wanted}: it was edited. {AGAIN}")
    if manifest.get("version") != VERSION:
        raise InputError(f"{path}: version {manifest.get('version')}, this code reads {VERSION}. {AGAIN}")
    check_shape(manifest, path)
    try:
        check_manifest(manifest)
    except InputError as e:
        raise InputError(f"{path}: {e}. {AGAIN}") from None
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Check that the splits are disjoint, without repeats and each in its namespace. Raises InputError."""
    seen: dict[tuple[str, int], str] = {}
    both = set(manifest["train_templates"]) & set(manifest["heldout_templates"])
    if both:
        raise InputError(f"templates {sorted(both)} are both trained and held out")
    for split in manifest["splits"]:
        allowed = manifest["heldout_templates" if split == "heldout" else "train_templates"]
        for task in tasks(manifest, split):
            key = (task.template, task.seed)
            if key in seen:
                raise InputError(f"{task.id} stands twice: in split {seen[key]} and in split {split}")
            if task.split != split or namespace_of(task.seed) != split or task.template not in allowed:
                raise InputError(f"{task.id} does not belong in split {split}")
            seen[key] = split


def tasks(manifest: Manifest, split: str) -> list[TaskSpec]:
    """The instances of a split, in the manifest's order. Raises KeyError."""
    return [TaskSpec.from_json(t) for t in manifest["splits"][split]]


def check_no_overlap(manifest: Manifest, trained_ids: Iterable[str]) -> None:
    """Check that no task id a checkpoint was trained on is tested by `manifest`. Raises OverlapError, naming five.

    Tested means: an instance (template and seed, in any wording) of split fresh or heldout, or any instance at all of a
    held-out template. An id that is not one of `TaskSpec.id` raises ValueError.
    """
    tested = {(t.suite, t.template, t.seed) for split in ("fresh", "heldout") for t in tasks(manifest, split)}
    heldout = set(manifest["heldout_templates"])
    bad: list[str] = []
    for task_id in trained_ids:
        parts = task_id.split("/")
        if len(parts) != 4 or not parts[2].isdigit():
            raise ValueError(f"{task_id!r} is no task id; expected suite/template/seed/wording")
        suite, template, seed, _ = parts
        if (suite, template, int(seed)) in tested or (suite == manifest["suite"] and template in heldout):
            bad.append(task_id)
    if bad:
        raise OverlapError(
            f"{len(bad)} trained tasks are tested by manifest {manifest['hash'][:12]}: {', '.join(sorted(bad)[:5])}. "
            "Evaluate with the manifest the checkpoint was trained with, or train again."
        )


def rl_task(manifest: Manifest, run_seed: int, iteration: int, index: int) -> TaskSpec:
    """Task number `index` of RL iteration `iteration`: a fresh training instance, never in any evaluation split.

    Templates are drawn evenly: every run of len(train_templates) indices is a permutation of them, shuffled anew for
    every iteration and run of indices. A pure function of its arguments; raises ValueError on a negative number.
    """
    if iteration < 0 or index < 0:
        raise ValueError(f"iteration {iteration}, index {index}: both must be 0 or more")
    names: list[str] = list(manifest["train_templates"])
    block, position = divmod(index, len(names))
    random.Random(derive("rl-order", run_seed, iteration, block)).shuffle(names)
    name = names[position]
    seed = instance_seed("rl", manifest["task_seed"], run_seed, iteration, index, name)
    wording = derive("rl-wording", run_seed, iteration, index) % manifest["wordings"]
    return _spec(manifest["suite"], name, seed, "train", wording)


def judge_task(manifest: Manifest, part: str, run_seed: int, template: str, source: str, index: int) -> TaskSpec:
    """Task `index` of a template for training ("train") or calibrating ("heldout") a judge of steps.

    In the RL namespace, so never an instance of an evaluation split, and apart from those of RL itself. Train templates
    are for training and held-out ones for calibration alone: ValueError else. A pure function of its arguments.
    """
    if part not in ("train", "heldout") or template not in manifest[f"{part}_templates"]:
        raise ValueError(f"{template}: not a template of part {part!r} of this manifest")
    split: Split = "train" if part == "train" else "heldout"
    seed = instance_seed("rl", "judge", manifest["task_seed"], run_seed, part, template, source, index)
    wording = derive("judge-wording", run_seed, part, template, source, index) % manifest["wordings"]
    return _spec(manifest["suite"], template, seed, split, wording)


def _seeds(split: str, task_seed: int, template: str, count: int) -> list[int]:
    """`count` distinct seeds; a longer list starts with the shorter one."""
    seeds: dict[int, None] = {}
    i = 0
    while len(seeds) < count:
        seeds[instance_seed(split, task_seed, template, i)] = None
        i += 1
    return list(seeds)


def _spec(suite: str, name: str, seed: int, split: Split, wording: int) -> TaskSpec:
    t = get_suite(suite).templates[name]
    return TaskSpec(suite, name, seed, split, wording, t.domain, t.max_steps, t.threshold)
