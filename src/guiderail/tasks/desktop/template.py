"""A desktop template: an OSWorld task with {placeholders}, the values they take, and the expert that solves it.

A template is one JSON file of a suite's folder: an OSWorld task, and under "guiderail" what makes it a template:
params {name: {"train": [...], "heldout": [...]}} (or {"from": other, "map": ...}), wordings, domain, steps, heldout,
and files {name: text, {"image": [width, height, colour]}, {"xlsx": rows, "cells": {cell: text}} or {"docx":
paragraphs}} that upload_file steps put into the guest and judges compare with.
Guarantees: an instance is a pure function of template and seed; seeds of train and RL draw from the train values, seeds
of fresh and held-out instances from the held-out values, which are disjoint; every instance is a checked OSWorld task.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guiderail.tasks.desktop.office_files import document, workbook
from guiderail.tasks.instances import derive, namespace_of
from guiderail.tasks.osworld import OsworldTask, TaskFileError
from guiderail.tasks.osworld_parse import parse_task
from guiderail.tasks.template import Template

Json = dict[str, Any]
FOLDERS = {"desktop": Path(__file__).parent / "tasks", "desktop_office": Path(__file__).parent / "office"}
"""Suite -> the folder of its templates."""


@dataclass(frozen=True)
class Source:
    """The JSON of a template of `suite`, and its part under "guiderail"."""

    name: str
    data: Json
    own: Json
    suite: str = "desktop"

    def values(self, seed: int) -> dict[str, str]:
        """The placeholders' values of instance `seed`."""
        side = "train" if namespace_of(seed) in ("train", "rl") else "heldout"
        rng = random.Random(derive(self.suite, self.name, seed))
        found: dict[str, str] = {}
        for key, pools in sorted(self.own.get("params", {}).items()):
            left = [v for v in pools[side] if v not in found.values()]
            found[key] = rng.choice(left)
        for key, text in self.own.get("derived", {}).items():
            found[key] = str(text).format_map(found)
        for key, (op, a, b) in self.own.get("numbers", {}).items():
            x, y = int(found[a]), int(found[b])
            found[key] = str({"+": x + y, "-": x - y, "*": x * y}[op])
        return found


@dataclass(frozen=True)
class Instance:
    """One task to set up: the OSWorld task, and the files its upload_file steps read (name -> bytes)."""

    task: OsworldTask
    files: Mapping[str, bytes]
    values: Mapping[str, str]


def sources(folder: Path, suite: str = "desktop") -> dict[str, Source]:
    """All template files of a suite, by name. Raises TaskFileError naming file and field."""
    found: dict[str, Source] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_bytes())
        except ValueError as e:
            raise TaskFileError(f"{path}: not JSON: {e}.") from None
        own = data.get("guiderail") if isinstance(data, dict) else None
        if not isinstance(own, dict):
            raise TaskFileError(f"{path}: guiderail: missing; without it this is a task, not a template.")
        for key, pools in own.get("params", {}).items():
            both = set(pools.get("train", [])) & set(pools.get("heldout", []))
            if both or not pools.get("train") or not pools.get("heldout"):
                raise TaskFileError(f"{path}: guiderail.params.{key}: train and heldout must be filled and disjoint.")
        found[path.stem] = Source(path.stem, data, own, suite)
    return found


def instance(source: Source, seed: int, wording: int = 0) -> Instance:
    """Instance `seed` in wording number `wording`. Raises TaskFileError, IndexError for a wording that is not there."""
    values = source.values(seed)
    data = _filled({k: v for k, v in source.data.items() if k != "guiderail"}, values)
    data["instruction"] = wordings(source)[wording].format_map(values)
    task = parse_task(data, f"{FOLDERS[source.suite].name}/{source.name}.json")
    files = {_filled(name, values): _content(what, values) for name, what in source.own.get("files", {}).items()}
    return Instance(task, files, values)


def wordings(source: Source) -> tuple[str, ...]:
    """The instruction as formats; the first is the file's own."""
    return (source.data["instruction"], *source.own.get("wordings", []))


def template(source: Source, policy: Any) -> Template:
    """The `Template` of a file, with its expert."""
    own = source.own
    low, high = own["steps"]
    return Template(
        name=source.name,
        domain=own["domain"],
        steps=(low, high),
        max_steps=high + 2,
        policy=policy,
        wordings=wordings(source),
        heldout=bool(own.get("heldout", False)),
    )


def _filled(tree: Any, values: Mapping[str, str]) -> Any:
    """A copy of a JSON tree with {name} replaced by its value in every text; other braces stay."""
    if isinstance(tree, str):
        for name, value in values.items():
            tree = tree.replace("{" + name + "}", value)
        return tree
    if isinstance(tree, list):
        return [_filled(x, values) for x in tree]
    if isinstance(tree, dict):
        return {_filled(k, values): _filled(v, values) for k, v in tree.items()}
    return tree


def _content(what: Any, values: Mapping[str, str]) -> bytes:
    """Bytes of a file: text, a workbook, a document, or a picture of one colour with a lighter square."""
    filled = _filled(what, values)
    if isinstance(filled, str):
        return filled.encode()
    if "xlsx" in filled:
        return workbook(filled["xlsx"], filled.get("cells", {}))
    if "docx" in filled:
        return document(filled["docx"])
    from PIL import Image, ImageDraw

    width, height, colour = filled["image"]
    picture = Image.new("RGB", (width, height), colour)
    ImageDraw.Draw(picture).rectangle((width // 4, height // 4, width // 2, height // 2), fill="white")
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()
