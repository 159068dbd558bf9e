"""The page shards of pretraining, and the batches drawn from them.

Guarantees: shards are memory-mapped, never loaded whole; a batch depends on the row maker's random state and on the
number of pages alone. Does not draw pages: see `guiderail.train.pages`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from guiderail.train.pages import Target
from guiderail.train.pretrain_rows import Row, RowMaker


class PageSet:
    """Shards of rendered pages (`write_shard` makes them), all of the same number of pages."""

    def __init__(self, folder: Path, shards: list[str]) -> None:
        """Open `shards` (names without suffix) of `folder`. ValueError when there is none."""
        if not shards:
            raise ValueError(f"{folder}: no shard of pages to read; render at least two (one is held out)")
        self.pixels = [np.load(folder / f"{s}.npy", mmap_mode="r") for s in shards]
        self.targets: list[list[Target]] = []
        for s in shards:
            self.targets += [[Target(*t) for t in page] for page in json.loads((folder / f"{s}.json").read_text())]
        self.per = len(self.pixels[0])
        self.busy = [i for i, page in enumerate(self.targets) if len(page) >= 12] or list(range(len(self.targets)))

    def __len__(self) -> int:
        return len(self.targets)

    def patches(self, pages: list[int]) -> torch.Tensor:
        """float32 [n * 140, 768] in [-2, 0], white = 0."""
        raw = np.concatenate([self.pixels[p // self.per][p % self.per] for p in pages])
        return torch.from_numpy(raw).float().div_(127.5).sub_(2.0)


def ink(patches: torch.Tensor, targets: list[list[Target]]) -> torch.Tensor:
    """Which patches show something: bool [n * 140].

    patches: float [n * 140, 768]; targets: of the n pages. The instruction bar on top is left out: its words are no
    targets. A page has one when nothing is named above pixel row 48; its patches are the tokens of rows 0 to 47.
    """
    shown = patches.amax(1) - patches.amin(1) > 0.2
    bar = torch.tensor([all(t.y > 48 for t in page) for page in targets])
    top = torch.arange(140) // 4 // 5 * 2 + torch.arange(140) % 4 // 2 < 3
    return shown & ~(bar[:, None] & top[None]).view(-1)


def make_batch(maker: RowMaker, data: PageSet, size: int, listing: float) -> list[Row]:
    """`size` pages worth of rows: a share `listing` of lists, the rest pointing (45 %), pairs (30 %) and typing."""
    rows: list[Row] = []
    used = 0
    while used < size:
        page = maker.random.randrange(len(data))
        k = maker.random.random()
        row: Row | None
        if k < listing:
            row = maker.listing(page, data.targets[page])
        elif (k := (k - listing) / (1 - listing)) < 0.45:
            row = maker.pointing(page, data.targets[page])
        elif k < 0.75:
            other = maker.random.randrange(len(data))
            row = maker.pair(page, data.targets[page], other, data.targets[other])
        else:
            row = maker.typing(page, data.targets[page])
        if row is not None:
            rows.append(row)
            used += len(row.pages)
    return rows
