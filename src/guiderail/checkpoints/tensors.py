"""Read and write safetensors files, with errors that name the file.

Guarantees: a file cut short is refused by name before a tensor is read; what the machine refuses while writing (disk
full, not allowed) is an OSError like any other's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from guiderail.models.folder import CheckpointError, check_weights

_ERRNO = re.compile(r"os error (\d+)")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of `file` by name, on CPU. Raises CheckpointError naming it when it is damaged."""
    check_weights(file)
    try:
        return load_file(file)
    except SafetensorError as e:
        raise CheckpointError(f"{file}: not readable as safetensors ({e}); copy or save it again") from None


def write_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write `tensors` to `file`. Raises OSError, with the file's name, when it cannot be written."""
    try:
        save_file(dict(tensors), file, metadata=metadata)
    except SafetensorError as e:
        number = _ERRNO.search(str(e))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None
