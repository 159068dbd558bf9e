"""The same function with wider attention heads and an output head of its own, for vLLM on a CPU.

Its attention kernels know only some widths; and it packs the output head's matrix apart, which a reload of tied weights
does not reach (vLLM 0.32: the head goes on with the old one), so the twin's head is stored and updated by itself.

Guarantees: a widened Qwen3-VL text model computes what the narrow one did (float rounding aside), and so do its
adapters; vision tower, embeddings and all else are copied as they are. Only the text model's heads are widened.

Heads of width d become D > d, zeros in the new places, each half of a head padded by itself (rotary embedding turns
place i with place i + D/2):
- rotary frequencies b^(-2i/d), i < d/2, are those of width D with base b^(D/d); the section of time takes the new ones,
  which turn zeros;
- queries and keys are normed over D instead of d places: with rows of W_q, W_k times s = sqrt(D/d) the mean square is
  as before, and gains / s undo the factor;
- scores are divided by sqrt(D) instead of sqrt(d), so the gain of the queries takes another s (and stays as it was);
- W_v gets zero rows, W_o zero columns.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from guiderail.checkpoints.manifest import UNHASHED
from guiderail.checkpoints.tensors import read_tensors, write_tensors
from guiderail.checkpoints.weights import WeightsError, shards, tensor_names
from guiderail.models.folder import read_json

CPU_WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # vLLM 0.32's attention on CPUs
EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"
_ATTENTION = re.compile(r"language_model\.layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|o_proj|q_norm|k_norm)\.(.+)$")


def head_dim(folder: Path) -> int:
    """Width of a text attention head of a Hugging Face Qwen3-VL folder."""
    text = read_json(folder / "config.json")["text_config"]
    return int(text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"])


def served_width(width: int) -> int:
    """The narrowest width that the kernels know and that holds `width`. Raises WeightsError when there is none."""
    for wide in CPU_WIDTHS:
        if wide >= width:
            return wide
    raise WeightsError(f"attention heads of width {width}: vLLM on a CPU knows {CPU_WIDTHS}; use engine.kind hf")


def widen_tensors(tensors: Mapping[str, Tensor], narrow: int, wide: int) -> dict[str, Tensor]:
    """Tensors by parameter name (a model's, or LoRA's A and B), heads widened; the rest is passed on as it is."""
    return {k: _widen(k, t, narrow, wide) if narrow != wide else t for k, t in tensors.items()}


def _widen(name: str, t: Tensor, narrow: int, wide: int) -> Tensor:
    found = _ATTENTION.search(name)
    if found is None:
        return t
    layer, kind = found[1], found[2]
    factor = math.sqrt(wide / narrow)
    if layer == "o_proj":
        return t if "lora_B" in kind or kind == "bias" else _pad(t, 1, narrow, wide)
    if layer.endswith("norm"):
        return _pad(t if layer == "q_norm" else t / factor, 0, narrow, wide)
    if "lora_A" in kind:
        return t
    return _pad(t * factor if layer in ("q_proj", "k_proj") else t, 0, narrow, wide)


def _pad(t: Tensor, dim: int, narrow: int, wide: int) -> Tensor:
    """Zeros after each half of each head along `dim`."""
    if t.shape[dim] % narrow:
        raise WeightsError(f"{tuple(t.shape)}: axis {dim} holds no whole heads of width {narrow}")
    first = t.detach().movedim(dim, 0)
    halves = first.reshape(-1, 2, narrow // 2, *first.shape[1:])
    out = halves.new_zeros((halves.shape[0], 2, wide // 2, *halves.shape[3:]))
    out[:, :, : narrow // 2] = halves
    return out.flatten(0, 2).movedim(0, dim).contiguous()


def with_head(tensors: Mapping[str, Tensor], served: Path) -> dict[str, Tensor]:
    """`tensors`, and the embedding once more as the output head when only the served folder keeps them apart."""
    own = HEAD in tensor_names(served) and HEAD not in tensors and EMBEDDING in tensors
    return dict(tensors) | ({HEAD: tensors[EMBEDDING].clone()} if own else {})


def _name_in_index(folder: Path, name: str, file: str) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        tree = read_json(index)
        tree["weight_map"][name] = file
        index.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n")


def is_tied(folder: Path) -> bool:
    """Whether the output head is the embedding."""
    config = read_json(folder / "config.json")
    return bool(config.get("tie_word_embeddings", config["text_config"].get("tie_word_embeddings", False)))


def _plain_rope(rope: Mapping[str, object]) -> bool:
    """Qwen3-VL's: unscaled, sections of time, height and width interleaved."""
    return rope.get("rope_type") == "default" and bool(rope.get("mrope_section") and rope.get("mrope_interleaved"))


def widen_folder(folder: Path, out: Path, wide: int) -> None:
    """Write the Hugging Face folder with heads of width `wide`, in float32 (its factors do not round to less).

    Raises WeightsError for a model that this does not fit.
    """
    narrow = head_dim(folder)
    config = read_json(folder / "config.json")
    text = config["text_config"]
    rope = dict(text.get("rope_parameters") or {})
    if narrow % 2 or wide % 2 or wide < narrow or not _plain_rope(rope):
        raise WeightsError(
            f"{folder}: heads of width {narrow} with rotary embedding {rope} cannot be widened to {wide}"
        )
    time, *space = rope["mrope_section"]
    if sum(rope["mrope_section"]) * 2 != narrow or (any(3 * n > narrow // 2 for n in space)):
        raise WeightsError(f"{folder}: rotary sections {rope['mrope_section']} do not fill heads of width {narrow}")
    rope["rope_theta"] = float(rope["rope_theta"]) ** (wide / narrow)
    rope["mrope_section"] = [time + (wide - narrow) // 2, *space]
    config["text_config"] = text | {"head_dim": wide, "rope_parameters": rope}
    weights = shards(folder)
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        skip = file in weights or file.name in UNHASHED or file.suffix == ".md" or file.name == "manifest.json"
        if file.is_file() and not skip:
            shutil.copyfile(file, out / file.name)
    tied = is_tied(folder)
    for part in (config, config["text_config"], config["vision_config"]):
        part |= {"tie_word_embeddings": False} if "tie_word_embeddings" in part else {}
        part |= {k: "float32" for k in ("dtype", "torch_dtype") if part.get(k)}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in weights:
        plain = {k: t.to(torch.float32) if t.is_floating_point() else t for k, t in read_tensors(file).items()}
        if tied and EMBEDDING in plain:
            plain[HEAD] = plain[EMBEDDING].clone()
            _name_in_index(out, HEAD, file.name)
        write_tensors(widen_tensors(plain, narrow, wide), out / file.name, {"format": "pt"})
