"""Where a token stands and what it may see: M-RoPE positions, causal masks and the key/value slots of decoding.

Guarantees: positions equal `Qwen3VLModel.get_rope_index` (tested), computed in numpy without its per-token loop; a
row whose image tokens do not match its frames is refused by name. Covers images only (no video).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Grid = tuple[int, int, int]


class RowMismatch(ValueError):
    """A row's image tokens and its vision features do not agree; the message names the row."""


def image_runs(ids: np.ndarray, image_token: int) -> list[tuple[int, int]]:
    """(start, end) of every contiguous run of `image_token` in ids [T], in order."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (ids == image_token).astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def mrope_positions(
    ids: np.ndarray, image_token: int, grids: Sequence[Grid], merge: int, row: str = "row"
) -> tuple[np.ndarray, int]:
    """Multimodal rotary positions of one row without padding.

    ids: int64 [T]; grids: (t, h, w) patches per image in order; merge: spatial merge size.
    Returns int64 [3, T] (temporal, height, width) and the position of the next token.
    Raises RowMismatch when runs of image tokens and grids differ in number or length.
    Source: Qwen3-VL `get_rope_index`: text advances all three axes together; an image of h x w merged cells occupies
    (p, p + i, p + j) and advances by max(h, w).
    """
    runs = image_runs(ids, image_token)
    if len(runs) != len(grids):
        raise RowMismatch(
            f"{row}: {len(runs)} image token runs in the ids, {len(grids)} frames listed; rebuild the row"
        )
    out = np.empty((3, len(ids)), dtype=np.int64)
    at = next_pos = 0
    for (start, end), (t, h, w) in zip(runs, grids, strict=True):
        gh, gw = h // merge, w // merge
        if t != 1 or end - start != gh * gw:
            raise RowMismatch(
                f"{row}: {end - start} image tokens at [{start}, {end}), but {t * gh * gw} vision features "
                f"(grid {t}x{h}x{w}); prompt and image sizing disagree"
            )
        out[:, at:start] = np.arange(next_pos, next_pos + start - at)
        next_pos += start - at
        cells = np.arange(gh * gw)
        out[0, start:end] = next_pos
        out[1, start:end] = next_pos + cells // gw
        out[2, start:end] = next_pos + cells % gw
        next_pos += max(gh, gw)
        at = end
    out[:, at:] = np.arange(next_pos, next_pos + len(ids) - at)
    return out, next_pos + len(ids) - at


class SlotCache:
    """Key/value store of a decoding batch: preallocated, written in place, read as a view.

    Looks like a transformers `Cache` as far as the decoder layers and the mask builder ask (`update`,
    `get_seq_length`, `get_mask_sizes`, `get_query_offset`). Column c of row b is meaningful only where the caller's
    mask says so.
    """

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, layers: int, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.values: list[torch.Tensor | None] = [None] * layers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, S, d] at the current length; returns views of all columns so far.

        `advance` moves the length.
        """
        end = self.length + key_states.shape[2]
        if end > self.capacity:
            raise IndexError(f"key/value cache of {self.capacity} columns cannot hold {end}")
        k, v = self.keys[layer_idx], self.values[layer_idx]
        if k is None or v is None:
            b, h, _, d = key_states.shape
            k = self.keys[layer_idx] = key_states.new_zeros(b, h, self.capacity, d)
            v = self.values[layer_idx] = value_states.new_zeros(b, h, self.capacity, value_states.shape[-1])
        k[:, :, self.length : end] = key_states
        v[:, :, self.length : end] = value_states
        return k[:, :, :end], v[:, :, :end]

    def advance(self, columns: int) -> None:
        """Count `columns` as written (once per forward, after all layers)."""
        self.length += columns

    def select(self, rows: torch.Tensor) -> None:
        """Keep (or repeat) `rows` of the batch, in that order."""
        self.keys = [None if k is None else k.index_select(0, rows) for k in self.keys]
        self.values = [None if v is None else v.index_select(0, rows) for v in self.values]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns written so far."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Index of the first query column of the next forward."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """(key columns, offset) the next forward of `query_length` columns will attend over."""
        return self.length + query_length, 0
