"""Rows as the language model takes them: embeddings with vision features in their places, positions, padding or none.

Guarantees: a token's inputs are the same in every layout: `padded` gives each row a line of its own, padded on the
right, so causality alone keeps padding out of every real token's sight; `flat` puts all rows in one, where equal
beginnings stand once. A row whose image tokens and features differ is refused by name. Runs nothing of the model but
its token embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from guiderail.models.attention import mrope_positions
from guiderail.models.features import FeatureCache, Features, Frames
from guiderail.models.packing import Plan, plan

Row = tuple[Sequence[int] | np.ndarray, Sequence[str]]
"""Ids of a row and the sha256 of its frames in order."""


@dataclass
class Packed:
    """Rows ready for the language model, padded on the right; or with `layout` all in one row without padding.

    embeds [B, T, D]; positions [3, B, T]; next_positions per row. layout: where each row's tokens stand, B is then 1.
    """

    embeds: torch.Tensor
    positions: torch.Tensor
    lengths: list[int]
    next_positions: list[int]
    visual_mask: torch.Tensor | None
    deepstack: list[torch.Tensor] | None
    layout: Plan | None = None


class Laid(NamedTuple):
    """ids [T] of a row, its frames with their features, the tokens' positions [3, T] and that of the next token."""

    ids: np.ndarray
    frames: Sequence[str]
    features: list[Features]
    positions: np.ndarray
    following: int


def lay(
    rows: Sequence[Row], features: FeatureCache, frames: Frames, image_token: int, merge: int, label: str
) -> list[Laid]:
    """Rows with the features of their frames and the positions of their tokens.

    merge: spatial merge size. Raises RowMismatch naming `label` and index when image tokens and features differ.
    """
    found = features.get([s for _, fs in rows for s in fs], frames)
    laid, at = [], 0
    for i, (ids, fs) in enumerate(rows):
        array = np.asarray(ids, dtype=np.int64)
        own = found[at : at + len(fs)]
        at += len(fs)
        name = f"{label} {i} (frames {[s[:8] for s in fs]})"
        laid.append(Laid(array, fs, own, *mrope_positions(array, image_token, [f.grid for f in own], merge, name)))
    return laid


def padded(laid: Sequence[Laid], embed: nn.Embedding, image_token: int, pad: int) -> Packed:
    """One line a row, padded on the right with `pad`."""
    device = embed.weight.device
    lengths = [len(row.ids) for row in laid]
    width = max(lengths)
    ids = np.full((len(laid), width), pad, dtype=np.int64)
    positions = np.zeros((3, len(laid), width), dtype=np.int64)
    for i, row in enumerate(laid):
        ids[i, : len(row.ids)], positions[:, i, : len(row.ids)] = row.ids, row.positions
    token_ids = torch.from_numpy(ids).to(device)
    embeds = embed(token_ids)
    features = [f.data for row in laid for f in row.features]
    visual_mask, deepstack = None, None
    if features:
        data = torch.cat(features, dim=1).to(embeds.device, embeds.dtype)
        visual_mask = token_ids == image_token
        embeds = embeds.masked_scatter(visual_mask[..., None], data[0])
        deepstack = list(data[1:].unbind(0))
    following = [row.following for row in laid]
    return Packed(embeds, torch.from_numpy(positions).to(device), lengths, following, visual_mask, deepstack)


def flat(laid: Sequence[Laid], embed: nn.Embedding, image_token: int, vocab: int) -> Packed:
    """All rows in one: no padding, and what rows begin with alike stands there once (`packing.plan`).

    vocab: number of ids, so that no id is taken for a cell of a frame.
    """
    first: dict[str, int] = {}  # where the cells of each frame begin among those of all frames
    distinct: list[torch.Tensor] = []
    size, sources = 0, []
    for row in laid:
        source = np.full(len(row.ids), -1, dtype=np.int64)
        cells = [np.empty(0, dtype=np.int64)]
        for sha, f in zip(row.frames, row.features, strict=True):
            if sha not in first:
                first[sha], size = size, size + f.cells
                distinct.append(f.data)
            cells.append(first[sha] + np.arange(f.cells))
        source[row.ids == image_token] = np.concatenate(cells)
        sources.append(source)
    keys = [np.where(s < 0, row.ids, vocab + s) for row, s in zip(laid, sources, strict=True)]
    layout = plan(keys)
    source = layout.flat(sources)
    embeds = embed(torch.from_numpy(layout.flat([row.ids for row in laid])).to(embed.weight.device))
    embeds, visual_mask, deepstack = embeds[None], None, None
    if distinct:
        index = torch.from_numpy(source[source >= 0]).to(embeds.device)
        data = torch.cat(distinct, dim=1).to(embeds.device, embeds.dtype).index_select(1, index)
        visual_mask = torch.from_numpy(source >= 0).to(embeds.device)[None]
        embeds = embeds.masked_scatter(visual_mask[..., None], data[0])
        deepstack = list(data[1:].unbind(0))
    positions = torch.from_numpy(layout.flat([row.positions for row in laid]))[:, None].to(embeds.device)
    following = [row.following for row in laid]
    return Packed(embeds, positions, [layout.tokens], following, visual_mask, deepstack, layout)
