"""Load a policy from disk: a Hugging Face folder of a Qwen3-VL checkpoint, or one of our adapter folders on top of
its parent.

Guarantees: safetensors only, nothing fetched, nothing unpickled; a missing or incomplete folder is one clear error
before any weight is read. Sets torch's thread count to `model.threads`. Freezes the vision tower unless
`model.train_vision`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from guiderail.errors import Explained
from guiderail.models.policy import Policy
from guiderail.models.quiet import no_progress_bars
from guiderail.params import Model


class CheckpointError(Explained, ValueError):
    """A checkpoint folder cannot be loaded; the message names the folder, what is missing and the remedy."""


def resolve_device(name: str) -> torch.device:
    """`auto` -> cuda when torch sees one, else cpu; anything else as torch spells it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def is_adapter(path: str | Path) -> bool:
    """Whether `path` is an adapter folder (PEFT layout) rather than a full model."""
    return (Path(path) / "adapter_config.json").is_file()


def adapter_parent(path: str | Path) -> Path:
    """Folder of the weights an adapter was trained on, from its manifest.json (`parent.path`, or the first of
    `parents`).

    Relative paths are read from the working directory, then from the adapter's own folder. Raises CheckpointError.
    """
    folder = Path(path)
    file = folder / "manifest.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: an adapter without manifest.json, so its parent is unknown; give the base model's path"
        )
    manifest: dict[str, Any] = json.loads(file.read_text())
    parents = manifest.get("parents") or ([manifest["parent"]] if manifest.get("parent") else [])
    parent = parents[0] if parents else None
    where = parent.get("path") if isinstance(parent, dict) else parent
    if not isinstance(where, str):
        raise CheckpointError(f"{file}: names no parent path; write it with guiderail's checkpoint saver")
    for candidate in (Path(where), folder / where):
        if candidate.is_dir():
            return candidate
    raise CheckpointError(
        f"{file}: parent {where} does not exist; restore it (dvc checkout) or pass the base model's path"
    )


def check_folder(path: str | Path) -> Path:
    """Refuse a folder that is not a complete HF Qwen3-VL checkpoint with processor. Raises CheckpointError."""
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: no such model folder; set `model.path` to a Qwen3-VL checkpoint, or run its stage first"
        )
    missing = [n for n in ("config.json", "tokenizer_config.json") if not (folder / n).is_file()]
    if not any((folder / n).is_file() for n in ("processor_config.json", "preprocessor_config.json")):
        missing.append("processor_config.json or preprocessor_config.json")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text())["weight_map"].values())
        missing += sorted(s for s in shards if not (folder / s).is_file())
    elif not (folder / "model.safetensors").is_file():
        missing.append("model.safetensors")
    if missing:
        raise CheckpointError(f"{folder}: incomplete checkpoint, missing {', '.join(missing)}; copy or save it again")
    kind = json.loads((folder / "config.json").read_text()).get("model_type")
    if kind != "qwen3_vl":
        raise CheckpointError(f"{folder}: model_type is {kind!r}; guiderail drives qwen3_vl checkpoints")
    return folder


def load_policy(path: str | Path, params: Model, adapter: str | Path | None = None) -> Policy:
    """Load a policy in eval mode on `params.device` with `params.dtype`.

    path: HF folder, or an adapter folder (its parent is then loaded first, recursively). adapter: adapter folder to
    put on top; its weights stay separate (trainable by PEFT, merged by `checkpoints.merge`). Raises CheckpointError.
    """
    if is_adapter(path):
        if adapter is not None:
            raise CheckpointError(f"{path}: is an adapter itself; merge it before putting {adapter} on top")
        return load_policy(adapter_parent(path), params, adapter=path)
    folder = check_folder(path)
    torch.set_num_threads(params.threads)
    with no_progress_bars():
        model = Qwen3VLForConditionalGeneration.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=getattr(torch, params.dtype),
            attn_implementation="sdpa",
        )
    model.to(resolve_device(params.device)).eval()
    if adapter is not None:
        _put_adapter(model, Path(adapter))
    for p in model.model.visual.parameters():
        p.requires_grad_(params.train_vision)
    return Policy(model, AutoProcessor.from_pretrained(folder, local_files_only=True))


def _put_adapter(model: Any, folder: Path) -> None:
    """Inject a PEFT adapter into `model` in place."""
    from peft import PeftModel

    missing = [n for n in ("adapter_config.json", "adapter_model.safetensors") if not (folder / n).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: incomplete adapter, missing {', '.join(missing)}; save it again")
    PeftModel.from_pretrained(model, str(folder), is_trainable=True, local_files_only=True).eval()
