"""Read sharded checkpoints, tensor by tensor: one torch file per rank, as verl and UI-S1 write them.

Guarantees: every rank's file is there, whole by its checksums, and holds the same names, shapes and placements, before
a tensor is put together; nothing is unpickled but tensors and torch's own descriptions of how they are sharded
(`weights_only`); files are mapped, not read, so memory holds one tensor at a time. Refuses what it cannot put together
for sure (partial sums, two sharded axes, copies that differ). Not for optimiser states.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from torch import Tensor

from guiderail.errors import Explained

UNREADABLE = (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError)
"""What torch raises for bytes that are no tensors."""
RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


class ShardError(Explained, ValueError):
    """Shards cannot be put together. The message names the file or tensor, what is wrong and the remedy."""


@dataclass(frozen=True)
class Form:
    """Shape and dtype of a whole tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Shards(Protocol):
    """A sharded checkpoint: whole tensors by name, made on demand."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Shape and dtype of every whole tensor."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it is read from."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One tensor, put together."""
        ...


class RankFiles:
    """`model_world_size_W_rank_R.pt` for all R below W. Raises ShardError on opening when any is missing or differs.

    whole: shapes of the model, which tell how plain tensors (not DTensors) belong together: alike on all ranks they
    are copies, else pieces along axis 0.
    """

    def __init__(self, folder: Path, whole: Mapping[str, tuple[int, ...]]) -> None:
        self.files = rank_files(folder)
        self._ranks = [_open(f) for f in self.files]
        first = self._ranks[0]
        for file, rank in zip(self.files, self._ranks, strict=True):
            if differ := sorted(rank.keys() ^ first.keys()):
                raise ShardError(f"{file}: names differ from rank 0's: {differ[:3]} ({len(differ)} in all)")
            if bad := [n for n, t in rank.items() if not isinstance(t, Tensor)]:
                raise ShardError(f"{file}: {bad[0]} is no tensor; is it an optimiser's state?")
        self._pieces = {n: self._plan(n, whole.get(n)) for n in first}
        self.forms = {n: Form(shape, _local(first[n]).dtype) for n, (_, _, shape) in self._pieces.items()}

    def _plan(self, name: str, whole: tuple[int, ...] | None) -> tuple[int | None, list[int], tuple[int, ...]]:
        """(axis or None for copies, ranks whose pieces make it up, whole shape) of a tensor."""
        from torch.distributed.tensor import DTensor, Replicate, Shard

        parts: list[Any] = [r[name] for r in self._ranks]
        if len({(_local(t).dtype, isinstance(t, DTensor)) for t in parts}) != 1:
            raise ShardError(f"{name}: its dtype or kind differs between ranks; the files are of different runs")
        if not isinstance(parts[0], DTensor):
            return self._plain(name, parts, whole)
        spec = parts[0].placements
        if len({(t.placements, tuple(t.shape)) for t in parts}) != 1:
            raise ShardError(f"{name}: placements or shapes differ between ranks; the files are of different runs")
        if any(type(p) not in (Shard, Replicate) for p in spec) or sum(type(p) is Shard for p in spec) > 1:
            raise ShardError(f"{name}: placements {spec} cannot be put together; gather it in the run that wrote it")
        mesh = parts[0].device_mesh.mesh
        if sorted(mesh.flatten().tolist()) != list(range(len(parts))):
            raise ShardError(f"{name}: its mesh {mesh.tolist()} is not the {len(parts)} ranks of the files")
        along: int | None = None
        for axis, placed in enumerate(spec):
            if isinstance(placed, Shard):
                along, mesh = placed.dim, mesh.movedim(axis, 0)
        copies: list[list[int]] = mesh.reshape(mesh.shape[0] if along is not None else 1, -1).tolist()
        ranks = [held[0] for held in copies]
        shape = tuple(parts[0].shape)
        if along is not None:
            pieces = [tuple(_local(parts[r]).shape) for r in ranks]
            held = sum(p[along] if len(p) == len(shape) else 0 for p in pieces)
            if held != shape[along] or any(
                p[:along] + p[along + 1 :] != shape[:along] + shape[along + 1 :] for p in pieces
            ):
                raise ShardError(f"{name}: pieces {pieces} do not make up {shape}; a rank's file is of another run")
        for first, *others in copies:
            if differ := [r for r in others if not _same(_local(parts[r]), _local(parts[first]))]:
                raise ShardError(
                    f"{name}: ranks {[first, *differ]} hold copies that differ; a file is of another step or run"
                )
        return along, ranks, shape

    def _plain(
        self, name: str, parts: list[Tensor], whole: tuple[int, ...] | None
    ) -> tuple[int | None, list[int], tuple[int, ...]]:
        shapes = [tuple(t.shape) for t in parts]
        if whole is None or all(s == whole for s in shapes):
            if any(not _same(t, parts[0]) for t in parts[1:]):
                raise ShardError(
                    f"{name}: plain tensors that differ between ranks, so they are neither copies nor pieces"
                )
            return None, [0], shapes[0]
        if all(s[1:] == whole[1:] for s in shapes) and sum(s[0] for s in shapes) == whole[0]:
            return 0, list(range(len(parts))), whole
        raise ShardError(f"{name}: plain tensors of shapes {shapes} do not make up the model's {whole}")

    def tensor(self, name: str) -> Tensor:
        """See `Shards`."""
        axis, ranks, _ = self._pieces[name]
        pieces = [_local(self._ranks[r][name]) for r in ranks]
        return pieces[0].clone() if axis is None else torch.cat(pieces, axis)


def rank_files(folder: Path) -> tuple[Path, ...]:
    """The files of all ranks, in order. Raises ShardError when the set is not complete or one is no torch file."""
    found = {(int(m[1]), int(m[2])): f for f in folder.iterdir() if (m := RANK_FILE.fullmatch(f.name))}
    worlds = sorted({w for w, _ in found})
    if len(worlds) != 1:
        what = f"shards of {len(worlds)} world sizes {worlds}" if worlds else "no model_world_size_W_rank_R.pt"
        raise ShardError(f"{folder}: {what}; give the folder of one checkpoint (verl: global_step_N/actor)")
    missing = [r for r in range(worlds[0]) if (worlds[0], r) not in found]
    if missing or len(found) != worlds[0]:
        raise ShardError(f"{folder}: of {worlds[0]} ranks {missing} are missing; copy all files of the checkpoint")
    files = tuple(found[worlds[0], r] for r in range(worlds[0]))
    for file in files:
        if not zipfile.is_zipfile(file):
            raise ShardError(f"{file}: cut short, or not a torch file; copy it again")
        check_sums(file, str(file))
    return files


def check_sums(file: Path | IO[bytes], what: str) -> None:
    """Refuse a torch file whose bytes are not the ones that were saved: torch writes checksums (of a zip file), and
    does not look at them when it loads. Raises ShardError, with `what` as the file's name."""
    try:
        with zipfile.ZipFile(file) as z:
            bad = z.testzip()
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as e:
        raise ShardError(f"{what}: damaged ({e}); copy it again") from None
    if bad is not None:
        raise ShardError(
            f"{what}: damaged, the checksum of {bad} is not that of its bytes; copy it again (or, if it was saved with "
            "torch.serialization.set_crc32_options(False), save it again without)"
        )


def _local(t: Any) -> Tensor:
    """A rank's own piece of a tensor."""
    from torch.distributed.tensor import DTensor

    return t._local_tensor if isinstance(t, DTensor) else t  # type: ignore[no-any-return]


def _same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, so that NaN is itself."""
    return a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _open(file: Path) -> dict[str, Tensor]:
    import torch.distributed.tensor

    try:
        found = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except UNREADABLE as e:
        why = " ".join(str(e).split())[:300]
        raise ShardError(f"{file}: not readable as tensors alone ({why}); nothing else is unpickled here") from None
    if not isinstance(found, dict):
        raise ShardError(f"{file}: holds a {type(found).__name__}, not tensors by name")
    return found
