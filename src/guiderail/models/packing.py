"""Many rows as one without padding: equal beginnings stand there once, and every token sees its own row alone.

Guarantees: the rows of a `Plan` form a tree of segments in which each token of each row has exactly one place; a
token's mask lets it see the tokens of its own row up to itself, wherever they stand, and nothing else. So hidden
states, and gradients summed over rows, equal those of the rows one by one to rounding (tested). What the tokens hold
is not its business: rows are compared by keys, and equal keys must mean equal inputs (id, feature and position).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LEAST = 8
"""Tokens below which an equal stretch is computed per row: a segment costs calls."""
BLOCK = 256
"""Tokens up to which neighbouring segments attend in one masked call: many short calls cost more than masked work."""


class Segment(NamedTuple):
    """Tokens [start, end) of row `row` (and of all rows that begin like it); parent: index of the segment before, -1
    without."""

    row: int
    start: int
    end: int
    parent: int


@dataclass(frozen=True)
class Plan:
    """A layout. segments: parents before children, one after the other on the flat axis; places: per row, the flat
    place of each of its tokens, int64 [T]."""

    segments: list[Segment]
    places: list[np.ndarray]

    @property
    def tokens(self) -> int:
        """Length of the flat axis."""
        return sum(s.end - s.start for s in self.segments)

    def flat(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Per-row arrays [..., T] -> [..., tokens]."""
        return np.concatenate([values[s.row][..., s.start : s.end] for s in self.segments], axis=-1)


def plan(keys: Sequence[np.ndarray], least: int = LEAST) -> Plan:
    """Lay out rows given by integer keys below 2^32 per token. Raises ValueError without rows or with an empty one."""
    if not len(keys) or not all(map(len, keys)):
        raise ValueError("nothing to pack: every row needs at least one token")
    words = [k.astype(">u4") for k in keys]
    order = sorted(range(len(keys)), key=lambda i: words[i].tobytes())  # neighbours share the most
    common = [0, *(_common(words[a], words[b]) for a, b in pairwise(order))]
    segments: list[Segment] = []
    places = [np.empty(len(k), dtype=np.int64) for k in keys]
    at, todo = 0, [(0, len(order), 0, -1)]  # rows order[low:high] equal up to `depth`, which is laid out
    while todo:
        low, high, depth, parent = todo.pop()
        split = min(common[low + 1 : high], default=len(keys[order[low]]))
        if split - depth >= least or (high - low == 1 and split > depth):
            segments.append(Segment(order[low], depth, split, parent))
            parent = len(segments) - 1
            for i in order[low:high]:
                places[i][depth:split] = np.arange(at, at + split - depth)
            at, depth = at + split - depth, split
        if high - low > 1:
            cuts = [low, *(i for i in range(low + 1, high) if common[i] == split), high]
            todo += [(a, b, depth, parent) for a, b in reversed(list(pairwise(cuts)))]
    return Plan(segments, places)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the equal beginning."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


@dataclass(frozen=True)
class Block:
    """One attention call: queries [start, end) of the flat axis over the keys in `spans`. mask: additive [1, 1,
    queries, keys]; None = causal."""

    start: int
    end: int
    spans: tuple[tuple[int, int], ...]
    mask: Tensor | None

    def keys(self, x: Tensor) -> Tensor:
        """x [1, H, tokens, d] -> [1, H, keys, d]."""
        parts = [x[:, :, a:b] for a, b in self.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def blocks(layout: Plan, like: Tensor, limit: int = BLOCK) -> list[Block]:
    """Attention calls that cover the flat axis in order, each of neighbours of together at most `limit` tokens or of
    one beginning. like: gives dtype and device of the masks."""
    segments = _cut(layout.segments, limit)
    starts = np.concatenate([[0], np.cumsum([s.end - s.start for s in segments])])
    above = np.eye(len(segments), dtype=bool)  # [i, j]: segment i stands on j, or is it
    for i, s in enumerate(segments):
        if s.parent >= 0:
            above[i] |= above[s.parent]
    found, first = [], 0
    for last in range(1, len(segments) + 1):
        if last < len(segments) and starts[last + 1] - starts[first] <= limit:
            continue
        found.append(_block(segments, starts, above, first, last, like))
        first = last
    return found


def _cut(segments: Sequence[Segment], limit: int) -> list[Segment]:
    """Segments in pieces of at most `limit` tokens, each standing on the one before: a masked call computes what it
    masks, and keys after a piece are not even there. Beginnings stay whole, for they need no mask."""
    out: list[Segment] = []
    last: list[int] = []  # of each segment, its last piece
    for s in segments:
        size = limit if s.parent >= 0 else s.end - s.start
        for k, a in enumerate(range(s.start, s.end, size)):
            above = len(out) - 1 if k else last[s.parent] if s.parent >= 0 else -1
            out.append(Segment(s.row, a, min(a + size, s.end), above))
        last.append(len(out) - 1)
    return out


def _block(
    segments: Sequence[Segment], starts: np.ndarray, above: np.ndarray, first: int, last: int, like: Tensor
) -> Block:
    """The call for the segments [first, last)."""
    own = range(first, last)
    before = [j for j in range(first) if above[first:last, j].any()]
    if not before and len(own) == 1:
        return Block(int(starts[first]), int(starts[last]), ((int(starts[first]), int(starts[last])),), None)
    spans: list[tuple[int, int]] = []
    for j in (*before, *own):
        a, b = int(starts[j]), int(starts[j + 1])
        spans[-1:] = [(spans[-1][0], b)] if spans and spans[-1][1] == a else [*spans[-1:], (a, b)]
    q_of, q_depth = _where(segments, own)
    k_of, k_depth = _where(segments, [*before, *own])
    seen = above[q_of][:, k_of] & (k_depth <= q_depth[:, None])
    mask = torch.zeros(1, 1, *seen.shape, dtype=like.dtype)
    mask.masked_fill_(torch.from_numpy(~seen), torch.finfo(like.dtype).min)
    return Block(int(starts[first]), int(starts[last]), tuple(spans), mask.to(like.device))


def _where(segments: Sequence[Segment], chosen: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(segment, place in its row) of every token of the segments `chosen`."""
    of = np.repeat(np.array(chosen), [segments[j].end - segments[j].start for j in chosen])
    return of, np.concatenate([np.arange(segments[j].start, segments[j].end) for j in chosen])
