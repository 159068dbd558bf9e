"""The newest versions of the trained weights on disk, for workers and for a resumed run.

Guarantees: a file is whole and on disk once `put` returns; kept are the versions that a rollout is or may still be of,
now or after a resume from the last saved state, and no others.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from guiderail.checkpoints.tensors import read_tensors, write_tensors


class Versions:
    """Weights by version in `folder`. saved: the version a resumed run would begin with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved = folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, version: int) -> Path:
        """Where a version lies."""
        return self.folder / f"{version:08d}.safetensors"

    def has(self, version: int) -> bool:
        """Whether it is there."""
        return self.path(version).exists()

    def get(self, version: int) -> dict[str, Tensor]:
        """Its tensors by parameter name, on CPU."""
        return read_tensors(self.path(version))

    def put(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Write a version; one that is there is replaced."""
        final = self.path(version)
        beside = final.with_name(f".{final.name}.tmp")
        write_tensors({n: x.detach().cpu().contiguous().clone() for n, x in weights.items()}, beside)
        with beside.open("rb") as f:
            os.fsync(f.fileno())
        os.replace(beside, final)

    def begin(self, step: int) -> None:
        """The run goes on from version `step`: later ones are of a life that ended, and go."""
        self.saved = step
        for version, file in self._all():
            if version > step:
                file.unlink()

    def prune(self, newest: int, behind: int, in_play: Collection[int] = ()) -> None:
        """Remove what is more than `behind` versions before `newest`, but for `saved`, the `behind` before it, and
        `in_play`: a worker may still have to read those."""
        for version, file in self._all():
            old = version < newest - behind and version not in in_play
            if old and not self.saved - behind <= version <= self.saved:
                file.unlink()

    def _all(self) -> list[tuple[int, Path]]:
        return [(int(f.stem), f) for f in sorted(self.folder.glob("????????.safetensors"))]
