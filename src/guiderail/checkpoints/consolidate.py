"""Shards of a distributed run -> one Hugging Face folder anybody can load.

Guarantees: all ranks are checked before a weight is read; the folder holds exactly the tensors of the model that the
configuration describes, each in the dtype it was stored in; tied weights are written once, and refused when they
differ; what is written appears as a whole or not at all, with a manifest that names and hashes its sources. Memory
holds one output file and one tensor.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.dcp import INDEX, DcpFolder, prefix_of
from guiderail.checkpoints.save import publish
from guiderail.checkpoints.shards import RankFiles, ShardError, Shards
from guiderail.checkpoints.tensors import write_tensors
from guiderail.models.folder import read_json

FILE_BYTES = 4 << 30  # tensors per output file, more only for a single larger tensor


@dataclass(frozen=True)
class Skeleton:
    """What a configuration says a model consists of: shapes by name, and names that are another's (tied)."""

    shapes: dict[str, tuple[int, ...]]
    tied: dict[str, str]


def skeleton(folder: Path) -> Skeleton:
    """Names and shapes of the model of `folder`/config.json, without its weights. Raises CheckpointError."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    read_json(folder / "config.json")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items()}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(param), name) != name:
            tied[name] = first[id(param)]
    return Skeleton(shapes, tied)


def open_shards(folder: Path, model: Skeleton) -> Shards:
    """The sharded checkpoint in `folder`, of either kind. Raises ShardError."""
    if (folder / INDEX).is_file():
        known = max(model.shapes.keys() - model.tied.keys(), key=len)
        return DcpFolder(folder, prefix_of(folder, known))
    if not folder.is_dir():
        raise ShardError(f"{folder}: no such folder")
    return RankFiles(folder, model.shapes)


def consolidate(
    folder: Path, like: Path, out: Path, *, dtype: torch.dtype | None = None, file_bytes: int = FILE_BYTES
) -> m.Manifest:
    """Put the shards in `folder` together into `out`, a new folder with the configuration, tokenizer and processor of
    `like` (its weights, if any, are not looked at).

    dtype: store floating tensors so; None = as they are. Raises ShardError, FileExistsError.
    """
    if out.exists():
        raise FileExistsError(17, "File exists", str(out))
    if not (like / "config.json").is_file():
        raise ShardError(f"{like}: no config.json there; --like takes a folder of the model that was trained")
    model = skeleton(like)
    source = open_shards(folder, model)
    plan = plan_files(model, source, dtype, file_bytes)
    sources = {f.name: m.sha256_file(f) for f in source.files}
    written: list[m.Manifest] = []

    def write(beside: Path) -> None:
        for file in sorted(like.iterdir()):
            weights = file.suffix in (".safetensors", ".bin", ".pt") or file.name == "model.safetensors.index.json"
            if file.is_file() and not weights and file.name not in m.UNHASHED and file.suffix != ".md":
                shutil.copyfile(file, beside / file.name)
        where: dict[str, str] = {}
        for name, keys in plan.items():
            tensors = {k: _stored(source.tensor(k), dtype) for k in keys}
            write_tensors(tensors, beside / name, {"format": "pt"})
            (beside / name).chmod(0o644)
            where |= dict.fromkeys(keys, name)
        _describe(beside, where, source, dtype)
        written.append(m.write(beside, m.Manifest(kind="full", stage="consolidate", method={"sources": sources})))

    publish(out, write)
    return written[0]


def plan_files(model: Skeleton, source: Shards, dtype: torch.dtype | None, file_bytes: int) -> dict[str, list[str]]:
    """Tensor names by output file. Raises ShardError unless the shards hold exactly the model."""
    names = [n for n in model.shapes if n not in model.tied]
    missing = [n for n in names if n not in source.forms]
    extra = sorted(source.forms.keys() - model.shapes.keys())
    if missing or extra:
        raise ShardError(
            f"the shards lack {missing[:3]} ({len(missing)}) and hold {extra[:3]} ({len(extra)}) that the model does "
            "not have: give the configuration of the model that was trained"
        )
    for name, form in source.forms.items():
        if form.shape != model.shapes[name]:
            raise ShardError(f"{name}: shape {form.shape} in the shards, {model.shapes[name]} by the configuration")
    for name, owner in model.tied.items():
        if name in source.forms and not torch.equal(source.tensor(name), source.tensor(owner)):
            raise ShardError(f"{name} and {owner} are one tensor by the configuration, but differ in the shards")
    groups: list[list[str]] = [[]]
    size = 0
    for name in names:
        form = source.forms[name]
        bytes_ = math.prod(form.shape) * (dtype or form.dtype).itemsize
        if groups[-1] and size + bytes_ > file_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += bytes_
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors": g for i, g in enumerate(groups)}


def _stored(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype if dtype and tensor.is_floating_point() else tensor.dtype).contiguous()


def _describe(folder: Path, where: dict[str, str], source: Shards, dtype: torch.dtype | None) -> None:
    """config.json names the widest stored dtype (loading goes by it); several files get an index."""
    stored = [dtype or source.forms[n].dtype for n in where if source.forms[n].dtype.is_floating_point]
    config = read_json(folder / "config.json")
    parts: list[dict[str, Any]] = [config, *(v for v in config.values() if isinstance(v, dict))]
    for part in parts if stored else []:
        widest = max(stored, key=lambda d: d.itemsize)
        part |= {k: str(widest).removeprefix("torch.") for k in ("dtype", "torch_dtype") if part.get(k)}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if len(set(where.values())) > 1:
        size = sum(math.prod(source.forms[n].shape) * (dtype or source.forms[n].dtype).itemsize for n in where)
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
