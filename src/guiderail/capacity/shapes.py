"""Shapes of Qwen-VL models and how many numbers they hold, from a configuration alone.

Guarantees: the counts are those of the model that transformers builds from the same configuration (tested, to the
parameter); models of the Hub that presets name are known without their folder. Reads no weights, imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guiderail.models.folder import read_json
from guiderail.models.sizing import ImageSizing

LINEARS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Shape:
    """One model. Text: hidden, ffn (intermediate size), layers, heads, kv_heads, head_dim, vocab, tied head. Vision:
    v_*; taps: deepstack layers. bias: qkv biases and a gated vision block (Qwen2.5-VL), else norms of q and k
    (Qwen3-VL)."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    v_hidden: int
    v_ffn: int
    v_depth: int
    v_heads: int
    taps: int
    patch: int = 16
    merge: int = 2
    v_positions: int = 2304
    bias: bool = False
    min_pixels: int = 256 * 256
    max_pixels: int = 4096 * 4096

    @property
    def q(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(in, out) of the linear layers of one text layer."""
        h, f = self.hidden, self.ffn
        sizes = [(h, self.q), (h, self.kv), (h, self.kv), (self.q, h), (h, f), (h, f), (f, h)]
        return dict(zip(LINEARS, sizes, strict=True))

    @property
    def layer(self) -> int:
        """Numbers in one text layer."""
        own = sum(a * b for a, b in self.linears().values()) + 2 * self.hidden
        return own + (self.q + 2 * self.kv if self.bias else 2 * self.head_dim)

    @property
    def text(self) -> int:
        """Numbers in embedding, text layers, last norm and output head (once when tied)."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.layers * self.layer + self.hidden

    @property
    def vision(self) -> int:
        """Numbers in the vision tower and its mergers."""
        h, f, volume = self.v_hidden, self.v_ffn, 3 * 2 * self.patch * self.patch
        wide = h * self.merge**2
        attention = 4 * h * h + 4 * h
        merger = wide * wide + wide + wide * self.hidden + self.hidden
        if self.bias:  # gated block with RMS norms, no positions to learn
            return volume * h + self.v_depth * (attention + 3 * h * f + 2 * f + h + 2 * h) + merger + h
        block = attention + 2 * h * f + f + h + 4 * h
        taps = self.taps * (merger + 2 * wide)
        return volume * h + h + self.v_positions * h + self.v_depth * block + merger + 2 * h + taps

    @property
    def total(self) -> int:
        """All numbers."""
        return self.text + self.vision

    def adapter(self, r: int) -> int:
        """Numbers of LoRA adapters of rank r on all linear layers of the text model."""
        return self.layers * sum(r * (a + b) for a, b in self.linears().values())

    @property
    def sizing(self) -> ImageSizing:
        """How images become tokens."""
        return ImageSizing(self.patch, self.merge, self.min_pixels, self.max_pixels)


_SMALL = Shape(  # what the Qwen3-VL models below share; vision tower of 2B and 4B
    hidden=2048, ffn=6144, layers=28, heads=16, kv_heads=8, head_dim=128, vocab=151_936, tied=True,
    v_hidden=1024, v_ffn=4096, v_depth=24, v_heads=16, taps=3,
)  # fmt: skip
_LARGE = replace(_SMALL, v_hidden=1152, v_ffn=4304, v_depth=27, tied=False)
KNOWN: dict[str, Shape] = {  # config.json of the Hub's models; Instruct and Thinking are alike
    "Qwen3-VL-2B": _SMALL,
    "Qwen3-VL-4B": replace(_SMALL, hidden=2560, ffn=9728, layers=36, heads=32),
    "Qwen3-VL-8B": replace(_LARGE, hidden=4096, ffn=12_288, layers=36, heads=32),
    "Qwen3-VL-32B": replace(_LARGE, hidden=5120, ffn=25_600, layers=64, heads=64),
    "Qwen2.5-VL-7B": Shape(
        hidden=3584, ffn=18_944, layers=28, heads=28, kv_heads=4, head_dim=128, vocab=152_064, tied=False,
        v_hidden=1280, v_ffn=3420, v_depth=32, v_heads=16, taps=0, patch=14, bias=True,
        min_pixels=56 * 56, max_pixels=12_845_056,
    ),
}  # fmt: skip


def known(path: str) -> Shape | None:
    """Shape of a model of the Hub by the last part of its path, e.g. models/Qwen3-VL-4B-Thinking."""
    name = Path(path).name
    return next((s for n, s in KNOWN.items() if name == n or name.startswith(f"{n}-")), None)


def read_shape(folder: Path) -> Shape:
    """Shape of the model in `folder`, from config.json and the processor's file. Raises CheckpointError, KeyError."""
    config = read_json(folder / "config.json")
    text, vision = config["text_config"], config["vision_config"]
    files = [folder / n for n in ("preprocessor_config.json", "processor_config.json") if (folder / n).is_file()]
    return from_config(config, text, vision, read_json(files[0]) if files else {})


def from_config(
    config: Mapping[str, Any], text: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]
) -> Shape:
    """Shape from the parts of a configuration."""
    images = processor.get("image_processor", processor)
    size = images.get("size") or {}
    return Shape(
        hidden=text["hidden_size"],
        ffn=text["intermediate_size"],
        layers=text["num_hidden_layers"],
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_dim=text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"],
        vocab=text["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        v_hidden=vision["hidden_size"],
        v_ffn=vision["intermediate_size"],
        v_depth=vision["depth"],
        v_heads=vision["num_heads"],
        taps=len(vision.get("deepstack_visual_indexes") or ()),
        patch=vision["patch_size"],
        merge=vision["spatial_merge_size"],
        v_positions=vision.get("num_position_embeddings", 0),
        bias=str(config.get("model_type", "")).startswith("qwen2_5_vl"),
        min_pixels=size.get("shortest_edge") or 56 * 56,
        max_pixels=size.get("longest_edge") or 4096 * 4096,
    )
