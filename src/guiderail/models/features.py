"""Vision features of frames: computed in batches, once per (frame, vision weights), and shared by everyone who asks.

Guarantees: features equal the library's own vision forward to rounding (tested at 1e-5): the patch embedding runs as
one matrix product instead of a Conv3d, and images of one size attend in one batched call instead of one by one.
Entries are keyed by the frame's sha256 and a hash of the vision weights, so a weight change can never serve a stale
feature. The cache is off while the vision tower is trainable. Covers still images (t = 1) only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from guiderail.models.attention import Grid


class Frames(Protocol):
    """Where frames come from (see `guiderail.models.frames.FrameStore`)."""

    def get(self, sha: str) -> Any:
        """The decoded image with digest `sha`. Raises KeyError or FileNotFoundError when it is not stored."""
        ...


@dataclass(frozen=True)
class Features:
    """Vision output of one image. data: [1 + deepstack levels, cells, hidden]; level 0 is the merged output."""

    data: torch.Tensor
    grid: Grid

    @property
    def cells(self) -> int:
        """Number of image tokens this image takes."""
        return int(self.data.shape[1])


def weights_hash(module: torch.nn.Module) -> str:
    """sha256 over names, dtypes, shapes and bytes of all parameters of `module`, in name order."""
    digest = hashlib.sha256()
    for name, p in sorted(module.named_parameters()):
        digest.update(f"{name}|{p.dtype}|{tuple(p.shape)}|".encode())
        digest.update(p.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def _attend(attn: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Vision attention over x [n images, cells, dim], every image to itself."""
    n, length, _ = x.shape
    parts = attn.qkv(x).view(n, length, 3, attn.num_heads, -1)
    q, k, v = parts.unbind(2)
    if x.dtype == torch.float32:
        q, k = _rotate(parts[:, :, :2], cos, sin).unbind(2)
    else:
        q, k = apply_rotary_pos_emb_vision(q, k, cos, sin)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=attn.scaling)
    return attn.proj(out.transpose(1, 2).reshape(n, length, -1))  # type: ignore[no-any-return]


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of queries and keys at once, x [n, cells, 2, heads, d]: to the bit what
    `apply_rotary_pos_emb_vision` gives in float32, with the sign on sin instead of a copy of half of x."""
    half = x.shape[-1] // 2
    sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)[:, None, None]
    turned = x.roll(half, -1) * sin
    return x * cos[:, None, None] + turned


def vision_forward(visual: Any, pixel_values: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Run a Qwen3-VL vision tower on n images of one size.

    visual: `Qwen3VLVisionModel`; pixel_values: [n * t * h * w, patch volume] as its image processor gives them; grid:
    (1, h, w). Returns [n, 1 + deepstack levels, cells, hidden out]; differentiable. Equals `visual(pixel_values,
    grid_thw)` to rounding.
    """
    t, h, w = grid
    if t != 1:
        raise ValueError(
            f"vision_forward takes still images, got a grid of {t} frames; use the library's forward for video"
        )
    conv = visual.patch_embed.proj
    x = F.linear(pixel_values.to(conv.weight.dtype), conv.weight.flatten(1), conv.bias)
    grid_thw = torch.tensor([grid], device=x.device)
    index, weight = get_vision_interpolation_indices_and_weights(
        grid_thw,
        num_grid_per_side=visual.num_grid_per_side,
        mode=visual.interpolation_mode,
        align_corners=visual.interpolation_align_corners,
        spatial_merge_size=visual.spatial_merge_size,
    )
    pos = (visual.pos_embed(index) * weight[:, :, None]).sum(1).to(x.dtype)
    n = x.shape[0] // (h * w)
    x = x.view(n, h * w, -1) + pos
    cos, sin = visual.rotary_pos_emb(x, get_vision_position_ids(grid_thw, visual.spatial_merge_size))
    levels: list[torch.Tensor] = []
    for i, block in enumerate(visual.blocks):
        x = x + _attend(block.attn, block.norm1(x), cos, sin)
        x = x + block.mlp(block.norm2(x))
        if i in visual.deepstack_visual_indexes:
            levels.append(visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(i)](x.flatten(0, 1)))
    out = torch.stack([visual.merger(x.flatten(0, 1)), *levels])
    return out.view(len(levels) + 1, n, -1, out.shape[-1]).transpose(0, 1)


class FeatureCache:
    """Least-recently-used store of `Features`, bounded in bytes.

    `preprocess` maps an image to (pixel values [patches, volume], grid). `hits`, `misses` count frames.
    """

    def __init__(
        self,
        visual: Any,
        preprocess: Callable[[Any], tuple[torch.Tensor, Grid]],
        *,
        max_bytes: int = 512 << 20,
        batch_patches: int = 16384,
    ) -> None:
        self.visual = visual
        self.preprocess = preprocess
        self.max_bytes = max_bytes
        self.batch_patches = batch_patches
        self.bytes = self.hits = self.misses = 0
        self._entries: OrderedDict[tuple[str, str], Features] = OrderedDict()
        self._hash: tuple[tuple[int, ...], str] | None = None

    @property
    def enabled(self) -> bool:
        """Whether features are kept: only while no vision weight is trainable."""
        return not any(p.requires_grad for p in self.visual.parameters())

    @property
    def vision_hash(self) -> str:
        """Hash of the vision weights; recomputed when torch has counted a write to any of them."""
        stamp = tuple(x for p in self.visual.parameters() for x in (p.data_ptr(), p._version))
        if self._hash is None or self._hash[0] != stamp:
            self._hash = (stamp, weights_hash(self.visual))
        return self._hash[1]

    def clear(self) -> None:
        """Forget everything, the weights' hash included (call after writing weights through `.data`)."""
        self._entries.clear()
        self.bytes = 0
        self._hash = None

    def get(self, shas: Sequence[str], frames: Frames) -> list[Features]:
        """Features of `shas`, in order, computing what is missing (each distinct frame once).

        With a trainable vision tower nothing is cached and the result carries gradients when grad mode is on.
        """
        if not self.enabled:
            made = self._compute(list(dict.fromkeys(shas)), frames)
            return [made[s] for s in shas]
        key = self.vision_hash
        found: dict[str, Features] = {}
        for s in dict.fromkeys(shas):
            entry = self._entries.get((s, key))
            if entry is not None:
                self._entries.move_to_end((s, key))
                found[s] = entry
        missing = [s for s in dict.fromkeys(shas) if s not in found]
        self.hits += len(found)
        self.misses += len(missing)
        if missing:
            with torch.no_grad():
                made = self._compute(missing, frames)
            for s, f in made.items():
                found[s] = Features(f.data.clone(), f.grid)  # own storage: a view would keep its whole batch alive
                self._put((s, key), found[s])
        return [found[s] for s in shas]

    def known(self, shas: Sequence[str]) -> tuple[str, dict[str, Features]]:
        """(hash of the vision weights, what is kept under it of `shas`); nothing while the tower is trainable."""
        if not self.enabled:
            return "", {}
        key = self.vision_hash
        return key, {s: self._entries[s, key] for s in shas if (s, key) in self._entries}

    def adopt(self, vision_hash: str, made: Mapping[str, Features]) -> None:
        """Keep features that another process made, if it made them with these vision weights."""
        if self.enabled and vision_hash == self.vision_hash:
            device = next(self.visual.parameters()).device
            for s, f in made.items():
                if (s, vision_hash) not in self._entries:
                    self._put((s, vision_hash), Features(f.data.to(device), f.grid))

    def _put(self, key: tuple[str, str], value: Features) -> None:
        self._entries[key] = value
        self.bytes += value.data.nbytes
        while self.bytes > self.max_bytes and len(self._entries) > 1:
            _, old = self._entries.popitem(last=False)
            self.bytes -= old.data.nbytes

    def _compute(self, shas: list[str], frames: Frames) -> dict[str, Features]:
        """Features of distinct frames, images of one size in one forward of at most `batch_patches` patches."""
        device = next(self.visual.parameters()).device
        by_grid: dict[Grid, list[tuple[str, torch.Tensor]]] = {}
        for s in shas:
            pixels, grid = self.preprocess(frames.get(s))
            by_grid.setdefault(grid, []).append((s, pixels))
        out: dict[str, Features] = {}
        for grid, items in by_grid.items():
            size = max(1, self.batch_patches // (grid[1] * grid[2]))
            for i in range(0, len(items), size):
                part = items[i : i + size]
                data = vision_forward(self.visual, torch.cat([p for _, p in part]).to(device), grid)
                out.update({s: Features(d, grid) for (s, _), d in zip(part, data, strict=True)})
        return out
