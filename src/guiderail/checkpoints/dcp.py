"""Read torch.distributed.checkpoint folders, tensor by tensor, without torch's unpickling of their index.

Guarantees: the index (`.metadata`, a pickle) is read with an unpickler that knows nothing but torch's descriptions of
tensors; anything else in it is refused. All files it names are there and long enough, and the pieces of every tensor
fill it, before one is read. Pieces are read with `weights_only`. Not for pieces in safetensors or compressed form.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guiderail.checkpoints.shards import UNREADABLE, Form, ShardError, check_sums

INDEX = ".metadata"
_CHECKPOINT = "torch.distributed.checkpoint."
_KNOWN = {
    *((_CHECKPOINT + "metadata", n) for n in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    (_CHECKPOINT + "filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
    ("pathlib._local", "PosixPath"),
}  # fmt: skip


class _Index(pickle.Unpickler):
    """Knows descriptions of tensors only."""

    def find_class(self, module: str, name: str) -> Any:
        """The class, if it is one of ours or a dtype."""
        if (module, name) in _KNOWN:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype | torch.layout):
            return found
        raise ShardError(f"the index asks for {module}.{name}, which no description of tensors needs; not loaded")


class DcpFolder:
    """Tensors of a torch.distributed.checkpoint folder whose names start with `prefix`, without it."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        file = folder / INDEX
        try:
            index = _Index(io.BytesIO(file.read_bytes())).load()
            described, stored = dict(index.state_dict_metadata), dict(index.storage_data)
            tensors = {
                n.removeprefix(prefix): d
                for n, d in described.items()
                if n.startswith(prefix) and isinstance(d, TensorStorageMetadata)
            }
            self.forms: dict[str, Form] = {n: Form(tuple(d.size), d.properties.dtype) for n, d in tensors.items()}
            self._pieces = self._places(folder, prefix, tensors, stored)
        except (*UNREADABLE, OverflowError, MemoryError) as e:
            if isinstance(e, ShardError):
                raise
            raise ShardError(f"{file}: not readable as an index of tensors ({type(e).__name__}: {e})") from None
        self.files = tuple(sorted({p[2] for ps in self._pieces.values() for p in ps}))
        self._check(folder)

    def _places(
        self, folder: Path, prefix: str, tensors: Mapping[str, Any], stored: Mapping[Any, Any]
    ) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Path, int, int]]]:
        """(offset, size, file, first byte, bytes) of the pieces of every tensor."""
        found: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Path, int, int]]] = defaultdict(list)
        for key, info in stored.items():
            name = key.fqn.removeprefix(prefix)
            if not key.fqn.startswith(prefix) or name not in tensors:
                continue
            offset = tuple(key.offset or (0,) * len(self.forms[name].shape))
            sizes = {tuple(c.offsets): tuple(c.sizes) for c in tensors[name].chunks}
            if getattr(info, "transform_descriptors", None) or offset not in sizes:
                raise ShardError(f"{folder}: {name} is stored in a form that is not read here")
            at = folder / info.relative_path
            if at.parent != folder or Path(info.relative_path).name != info.relative_path:
                raise ShardError(f"{folder / INDEX}: names a file outside the folder, {info.relative_path!r}")
            found[name].append((offset, sizes[offset], at, int(info.offset), int(info.length)))
        return found

    def _check(self, folder: Path) -> None:
        """All files there, long enough, and every tensor filled once."""
        if missing := [f.name for f in self.files if not f.is_file()]:
            raise ShardError(f"{folder}: {missing} missing; copy all files of the checkpoint")
        for name, form in self.forms.items():
            pieces = self._pieces[name]
            held = sum(math.prod(size) for _, size, *_ in pieces)
            if held != math.prod(form.shape) or len({p[0] for p in pieces}) != len(pieces):
                raise ShardError(f"{folder}: pieces of {name} hold {held} of {math.prod(form.shape)} numbers")
            for *_, file, start, length in pieces:
                if file.stat().st_size < start + length:
                    raise ShardError(f"{file}: cut short, {file.stat().st_size} bytes; copy it again")

    def tensor(self, name: str) -> Tensor:
        """See `shards.Shards`. Raises ShardError for a damaged piece."""
        form = self.forms[name]
        out = torch.empty(form.shape, dtype=form.dtype)
        for offset, size, file, start, length in self._pieces[name]:
            with file.open("rb") as f:
                f.seek(start)
                data = f.read(length)
            check_sums(io.BytesIO(data), f"{file}: the piece of {name}")
            try:
                piece = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            except UNREADABLE as e:
                raise ShardError(f"{file}: the piece of {name} is damaged ({' '.join(str(e).split())[:200]})") from None
            if tuple(piece.shape) != size or piece.dtype != form.dtype:
                raise ShardError(f"{file}: a piece of {name} is {tuple(piece.shape)} {piece.dtype}, not {size}")
            out[tuple(slice(o, o + n) for o, n in zip(offset, size, strict=True))] = piece
        return out


def prefix_of(folder: Path, known: str) -> str:
    """What stands before the model's names, e.g. "model." in {"model": ..., "optim": ...}; `known` is one of its names.

    Raises ShardError when no name, or more than one, ends with it.
    """
    names = DcpFolder(folder).forms
    found: list[str] = sorted(n.removesuffix(known) for n in names if n == known or n.endswith("." + known))
    found = [p for p in found if not p.startswith("optim")]
    if len(found) != 1:
        raise ShardError(f"{folder}: {len(found)} tensors end with {known}: it does not hold this model, or several")
    return found[0]
