"""A checkpoint's full weights, tensor by tensor, whatever form they are stored in.

Guarantees: a Hugging Face folder gives its tensors as stored, an adapter folder those of its parent with the adapter
folded in (float32 or better); both are verified against their manifests on opening. Memory holds the tensor asked for
(and the adapter).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.shards import Form
from guiderail.checkpoints.weights import adapter_deltas, shards
from guiderail.models.folder import check_weights, read_json

EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"
Change = dict[str, Callable[[Tensor], Tensor]]
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def source(checkpoint: Path) -> tuple[Path, Change]:
    """(Hugging Face folder, changes to its tensors) that together are the checkpoint's full weights. Verifies both."""
    if not (checkpoint / m.FILE).is_file() and not (checkpoint / "adapter_config.json").is_file():
        return checkpoint, {}  # a plain base model
    found = m.verify_files(checkpoint)
    if found.kind != "lora":
        return checkpoint, {}
    return m.check_link(found.parent, "parent", checkpoint), adapter_deltas(checkpoint)


class Effective:
    """Full weights by name. Raises ManifestError, WeightsError, CheckpointError on opening."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.folder, self._change = source(checkpoint)
        self.files: dict[str, Path] = {}
        self.forms: dict[str, Form] = {}
        for file in shards(self.folder):
            check_weights(file)
            with safe_open(file, framework="pt") as f:
                for name in f.keys():  # noqa: SIM118  (not a mapping)
                    part = f.get_slice(name)
                    kind = _DTYPES[part.get_dtype()]
                    if name in self._change and kind.is_floating_point:
                        kind = torch.promote_types(kind, torch.float32)
                    self.files[name] = file
                    self.forms[name] = Form(tuple(part.get_shape()), kind)

    @property
    def tied(self) -> bool:
        """Whether the configuration makes the output head the embedding."""
        config = read_json(self.folder / "config.json")
        text = config.get("text_config") or {}
        return bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))

    def tensor(self, name: str) -> Tensor:
        """One tensor."""
        with safe_open(self.files[name], framework="pt") as f:
            stored: Tensor = f.get_tensor(name)
        return self._change[name](stored) if name in self._change else stored
