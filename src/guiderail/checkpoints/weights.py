"""Write checkpoints: a Hugging Face folder made from its parent file by file, or a PEFT adapter.

Guarantees: no tensor is rounded: it is stored in the dtype it was trained or merged in, or the parent's where that is
wider, so what was not trained keeps the parent's values exactly; shard layout, processor and tokenizer are the
parent's; every trained tensor must find its place or nothing is written. Peak memory is one shard, not one model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from guiderail.checkpoints.manifest import UNHASHED
from guiderail.checkpoints.tensors import read_tensors, write_tensors
from guiderail.errors import Explained
from guiderail.models.folder import check_names, check_weights
from guiderail.params_train import Lora

ADAPTER_FILE = "adapter_model.safetensors"
_PREFIX, _ADAPTER = "base_model.model.", "default"


class WeightsError(Explained, ValueError):
    """Trained tensors and checkpoint files do not fit together."""


def shards(folder: Path) -> list[Path]:
    """The weight files of a Hugging Face folder. Raises WeightsError when there are none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        check_names(folder, names)
    else:
        names = ["model.safetensors"]
    files = [folder / n for n in names]
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        raise WeightsError(f"{folder}: lacks {missing}; a Hugging Face folder with safetensors weights is needed")
    return files


def tensor_names(folder: Path) -> set[str]:
    """Names of all tensors of a Hugging Face folder."""
    names: set[str] = set()
    for file in shards(folder):
        check_weights(file)
        with safe_open(file, framework="pt") as f:
            names |= set(f.keys())
    return names


def rewrite(
    parent: Path, out: Path, change: Mapping[str, Callable[[Tensor], Tensor]], dtype: torch.dtype | None = None
) -> None:
    """Copy the Hugging Face folder `parent` into `out`, with `change[name](tensor)` in place of the tensors named.

    Floating tensors are stored in `dtype` or the parent's own, whichever is wider (None: the parent's own); the
    configuration says which. Raises WeightsError when a name is not in `parent`, a shape changes, or what was changed
    is not finite.
    """
    absent = sorted(change.keys() - tensor_names(parent))
    if absent:
        raise WeightsError(f"{parent}: has no tensor {absent[:5]} ({len(absent)} in all) to put trained weights into")
    weights = {f.name for f in shards(parent)}
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(parent.iterdir()):
        if file.is_file() and file.name not in weights and file.name not in UNHASHED and file.suffix != ".md":
            shutil.copyfile(file, out / file.name)
    stored: set[torch.dtype] = set()
    size = 0
    for name in sorted(weights):
        tensors = read_tensors(parent / name)
        with safe_open(parent / name, framework="pt") as f:
            metadata = f.metadata()
        for key, old in tensors.items():
            kind = torch.promote_types(old.dtype, dtype) if dtype and old.is_floating_point() else old.dtype
            new = change[key](old) if key in change else old
            if new.shape != old.shape:
                raise WeightsError(f"{key}: shape {tuple(new.shape)} does not fit the parent's {tuple(old.shape)}")
            tensors[key] = new.detach().to("cpu", kind).contiguous()
            if key in change and kind.is_floating_point and not bool(torch.isfinite(tensors[key]).all()):
                raise WeightsError(
                    f"{key}: holds numbers that are not finite in {kind}; a training that diverged, or weights too "
                    "large for that dtype"
                )
            stored |= {kind} if kind.is_floating_point else set()
            size += tensors[key].nbytes
        write_tensors(tensors, out / name, metadata or {"format": "pt"})
        (out / name).chmod(0o644)  # safetensors writes files that only their owner can read
    _tell_dtype(out, stored, size)


def _tell_dtype(folder: Path, stored: set[torch.dtype], size: int) -> None:
    """Let config.json name the widest dtype of the weights (`from_pretrained` goes by it), and the index their size."""
    widest = max(stored, key=lambda d: d.itemsize, default=None)
    config, index = folder / "config.json", folder / "model.safetensors.index.json"
    if widest is not None and config.is_file():
        tree = json.loads(config.read_text())
        for part in [tree, *(v for v in tree.values() if isinstance(v, dict))]:
            part |= {k: str(widest).removeprefix("torch.") for k in ("dtype", "torch_dtype") if part.get(k)}
        config.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n")
    if index.is_file():
        tree = json.loads(index.read_text())
        tree["metadata"] = {**tree.get("metadata", {}), "total_size": size}
        index.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n")


def save_full(parent: Path, out: Path, trained: Mapping[str, Tensor]) -> None:
    """Hugging Face folder of `parent` with the trained tensors (by parameter name) in place, in their dtype."""

    def put(tensor: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda _: tensor

    (dtype,) = {tensor.dtype for tensor in trained.values()}
    rewrite(parent, out, {name: put(tensor) for name, tensor in trained.items()}, dtype)


def save_adapter(out: Path, trained: Mapping[str, Tensor], lora: Lora, parent: Path) -> None:
    """PEFT adapter folder: adapter_model.safetensors and adapter_config.json, loadable by
    `PeftModel.from_pretrained`."""
    from peft import LoraConfig

    suffix = f".{_ADAPTER}.weight"
    bad = [n for n in trained if not n.endswith(suffix)]
    if bad:
        raise WeightsError(f"not adapter tensors: {bad[:5]}")
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{_PREFIX}{n.removesuffix(suffix)}.weight": t.detach().cpu().contiguous().clone() for n, t in trained.items()
    }
    write_tensors(tensors, out / ADAPTER_FILE, {"format": "pt"})
    (out / ADAPTER_FILE).chmod(0o644)
    targets = sorted({n.rsplit(".lora_", 1)[0] for n in trained})
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        bias="none",
        inference_mode=True,
        base_model_name_or_path=parent.as_posix(),
    )
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    (out / "adapter_config.json").write_text(json.dumps(plain, indent=1, sort_keys=True, default=str) + "\n")


def adapter_deltas(folder: Path) -> dict[str, Callable[[Tensor], Tensor]]:
    """Per target weight, the function W -> W + (alpha / r) B A of an adapter folder, computed in float32 or better.

    Hu et al. 2021 (arXiv 2106.09685) section 4.1. Raises WeightsError for adapter kinds that this formula does not
    cover.
    """
    config: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    odd = [k for k in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save") if config.get(k)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or odd:
        raise WeightsError(
            f"{folder}: only plain LoRA without bias can be folded, found {odd or config.get('peft_type')}"
        )
    scale = config["lora_alpha"] / config["r"]
    tensors = read_tensors(folder / ADAPTER_FILE)
    targets = sorted({k.rsplit(".lora_", 1)[0] for k in tensors})
    expected = {f"{t}.lora_{ab}.weight" for t in targets for ab in "AB"}
    if tensors.keys() != expected:
        raise WeightsError(f"{folder}: unpaired adapter tensors {sorted(tensors.keys() ^ expected)[:5]}")

    def fold(target: str) -> Callable[[Tensor], Tensor]:
        a, b = tensors[f"{target}.lora_A.weight"], tensors[f"{target}.lora_B.weight"]

        def apply(w: Tensor) -> Tensor:
            wide = torch.promote_types(w.dtype, torch.float32)
            folded: Tensor = w.to(wide) + scale * (b.to(wide) @ a.to(wide))
            return folded

        return apply

    return {f"{t.removeprefix(_PREFIX)}.weight": fold(t) for t in targets}
