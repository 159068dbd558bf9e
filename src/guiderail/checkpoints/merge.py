"""Merge: an adapter folded into its parent, or start and end of a lineage interpolated, as one Hugging Face folder.

Guarantees: parents are verified by digest before anything is written; tensors that no training touched keep the
parent's values exactly; what is folded is stored in the dtype asked for or a wider one; processor and tokenizer come
along; the result's manifest lists its lineage. Peak memory is one shard and its changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from guiderail.checkpoints import manifest as m
from guiderail.checkpoints.effective import Effective, source
from guiderail.checkpoints.weights import rewrite
from guiderail.errors import Explained


class MergeError(Explained, ValueError):
    """Checkpoints cannot be merged. The message says which, why and what to do."""


def fold(checkpoint: Path, out: Path, dtype: torch.dtype | None = None) -> None:
    """Write the checkpoint's full weights to `out`: W + (alpha / r) B A for an adapter, a copy otherwise. No
    manifest. dtype: as in `weights.rewrite`."""
    parent, change = source(checkpoint)
    rewrite(parent, out, change, dtype)


def merge_lora(end: Path, out: Path, recipe: str = "", seed: int = 0, dtype: torch.dtype | None = None) -> m.Manifest:
    """Fold `end` into `out` and write its manifest (kind "merged"). Raises ManifestError, WeightsError."""
    fold(end, out, dtype)
    return _describe(end, out, recipe, seed, {"method": "lora"})


def merge_linear(
    end: Path, out: Path, weight: float, recipe: str = "", seed: int = 0, dtype: torch.dtype | None = None
) -> m.Manifest:
    """(1 - weight) * start + weight * end, tensor by tensor in float32 or better, start being what `end` was trained
    from.

    Wortsman et al. 2022 (WiSE-FT, arXiv 2109.01903), section 3. Tensors equal in both are copied. weight in [0, 1].
    Raises MergeError when start and end are not one lineage or differ in their tensors.
    """
    found = m.verify_files(end)
    start = m.check_link(found.start, "start", end)
    if m.weights_digest(start) not in found.ancestors:
        raise MergeError(f"{end}: {start} is not an ancestor; only checkpoints of one lineage can be interpolated")
    first, last = Effective(start), Effective(end)
    if first.files.keys() != last.files.keys():
        raise MergeError(
            f"{start} and {end} do not hold the same tensors: {sorted(first.files.keys() ^ last.files.keys())[:5]}"
        )

    def between(name: str) -> Callable[[Tensor], Tensor]:
        return lambda _: interpolate(first.tensor(name), last.tensor(name), weight)

    rewrite(last.folder, out, {name: between(name) for name in last.files}, dtype)
    return _describe(end, out, recipe, seed, {"method": "linear", "weight": weight})


def interpolate(first: Tensor, last: Tensor, weight: float) -> Tensor:
    """(1 - weight) * first + weight * last in float32 or better; equal tensors come back as they are."""
    if torch.equal(first, last):
        return last
    wide = torch.promote_types(first.dtype, torch.float32)
    return (1.0 - weight) * first.to(wide) + weight * last.to(wide)


def _describe(end: Path, out: Path, recipe: str, seed: int, method: dict[str, str | float]) -> m.Manifest:
    """Manifest of a merged folder: its parent is the checkpoint merged."""
    ancestors, trained_on = m.lineage(end)
    link = m.Link.to(end)
    return m.write(
        out,
        m.Manifest(
            kind="merged",
            stage="merge",
            parent=link,
            start=link,
            ancestors=ancestors,
            recipe=recipe,
            seed=seed,
            trained_on=trained_on,
            method=dict(method),
        ),
    )
