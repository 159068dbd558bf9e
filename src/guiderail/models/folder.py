"""What a model folder must hold, looked at without loading it (no torch).

Guarantees: a folder that passes `check_folder` is a Qwen3-VL checkpoint with its processor and tokenizer, and none of
its weight files is cut short; each refusal names the file, what is wrong and the remedy. Does not hash: a manifest, if
the folder has one, is `checkpoints.manifest`'s affair.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from guiderail.errors import Explained

INDEX = "model.safetensors.index.json"
AGAIN = "copy or save it again"


class CheckpointError(Explained, ValueError):
    """A checkpoint folder cannot be loaded; the message names the folder, what is missing and the remedy."""


def is_adapter(path: str | Path) -> bool:
    """Whether `path` is an adapter folder (PEFT layout) rather than a full model."""
    return (Path(path) / "adapter_config.json").is_file()


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises CheckpointError when it is none."""
    try:
        tree = json.loads(file.read_bytes())
    except ValueError as e:  # not UTF-8 or not JSON
        raise CheckpointError(f"{file}: not readable as JSON ({e}); {AGAIN}") from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{file}: must hold a mapping, holds {type(tree).__name__}; {AGAIN}")
    return tree


def check_folder(path: str | Path) -> Path:
    """Refuse a folder that is not a complete HF Qwen3-VL checkpoint with processor. Raises CheckpointError."""
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: no such model folder; set `model.path` to a Qwen3-VL checkpoint, or run its stage first"
        )
    missing = [n for n in ("config.json", "tokenizer_config.json") if not (folder / n).is_file()]
    if not any((folder / n).is_file() for n in ("processor_config.json", "preprocessor_config.json")):
        missing.append("processor_config.json or preprocessor_config.json")
    if not any((folder / n).is_file() for n in ("tokenizer.json", "vocab.json")):
        missing.append("tokenizer.json or vocab.json")
    weights = ["model.safetensors"]
    if (folder / INDEX).is_file():
        named = read_json(folder / INDEX).get("weight_map")
        if not isinstance(named, dict) or not named:
            raise CheckpointError(f"{folder / INDEX}: names no weights (weight_map); {AGAIN}")
        weights = sorted({str(n) for n in named.values()})
        check_names(folder, weights)
    missing += [n for n in weights if not (folder / n).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: incomplete checkpoint, missing {', '.join(missing)}; {AGAIN}")
    kind = read_json(folder / "config.json").get("model_type")
    if kind != "qwen3_vl":
        raise CheckpointError(f"{folder}: model_type is {kind!r}; guiderail drives qwen3_vl checkpoints")
    for name in weights:
        check_weights(folder / name)
    return folder


def check_names(folder: Path, weights: Iterable[str]) -> None:
    """Refuse an index whose files are not the folder's own: neither digest nor manifest of the folder would know them.
    Raises CheckpointError."""
    if outside := [n for n in weights if Path(n).name != n]:
        raise CheckpointError(f"{folder / INDEX}: names {outside[0]!r}, not a file of this folder; {AGAIN}")


def check_weights(file: Path) -> None:
    """Refuse a safetensors file that is cut short or not one: its size must be what its header says.

    Layout: 8 bytes N (little endian), N bytes of JSON {name: {"data_offsets": [begin, end], ...}}, then the tensors.
    Raises CheckpointError.
    """
    size = file.stat().st_size
    with file.open("rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"{file}: not a whole safetensors file ({size} bytes); {AGAIN}")
        try:
            header = json.loads(f.read(length))
            ends = [int(t["data_offsets"][1]) for name, t in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise CheckpointError(f"{file}: its safetensors header is damaged; {AGAIN}") from None
    wanted = 8 + length + max(ends, default=0)
    if size != wanted:
        how = "cut short" if size < wanted else "longer than its header says"
        raise CheckpointError(f"{file}: {how}, {size} bytes of {wanted}; {AGAIN}")
