"""Load a policy from disk: a Hugging Face folder of a Qwen3-VL checkpoint, or one of our adapter folders on top of
its parent.

Guarantees: safetensors only, nothing fetched, nothing unpickled; a missing, incomplete or cut folder is one clear error
before any weight is read (`folder`). Sets torch's thread count to `model.threads`. Freezes the vision tower unless
`model.train_vision`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoProcessor, Qwen3VLForConditionalGeneration

from guiderail.models import recompute
from guiderail.models.folder import CheckpointError, check_folder, check_weights, is_adapter, read_json
from guiderail.models.policy import Policy
from guiderail.models.quiet import no_progress_bars
from guiderail.params import Model, ParamError


def resolve_device(name: str) -> torch.device:
    """`auto` -> cuda when torch sees one, else cpu; anything else as torch spells it. Raises ParamError when it is not
    there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device, count = torch.device(name), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        seen = f"torch sees {count} GPUs" if count else "torch sees no GPU (driver, or a build of torch without CUDA)"
        raise ParamError(f"model.device = {name!r}: {seen}. Choose auto, cpu{', or cuda:0 and up' if count else ''}.")
    return device


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
    manifest = read_json(file)
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
    recompute.switch(model.model.language_model, params.recompute)
    if adapter is not None:
        _put_adapter(model, Path(adapter))
    for p in model.model.visual.parameters():
        p.requires_grad_(params.train_vision)
    return Policy(model, AutoProcessor.from_pretrained(folder, local_files_only=True))


def load_outline(path: str | Path) -> Policy:
    """A policy without weights: tokenizer, sizes and names of a folder (or of an adapter's parent), for building
    prompts where another process runs the model. Raises CheckpointError."""
    if is_adapter(path):
        return load_outline(adapter_parent(path))
    folder = check_folder(path)
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(AutoConfig.from_pretrained(folder, local_files_only=True))
    return Policy(model, AutoProcessor.from_pretrained(folder, local_files_only=True))


def _put_adapter(model: Any, folder: Path) -> None:
    """Inject a PEFT adapter into `model` in place."""
    from peft import PeftModel

    missing = [n for n in ("adapter_config.json", "adapter_model.safetensors") if not (folder / n).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: incomplete adapter, missing {', '.join(missing)}; save it again")
    check_weights(folder / "adapter_model.safetensors")
    PeftModel.from_pretrained(model, str(folder), is_trainable=True, local_files_only=True).eval()
