"""Resumable states of a run of several processes: each writes its shards (torch.distributed.checkpoint), one manifest.

Guarantees: as `checkpoints.save` for one process: a state folder that exists under its final name is whole (written
beside by all processes, hashed, fsynced, renamed by the first), the newest is found after kill -9, and what is restored
is what was saved, also into another number of processes. A damaged file is refused before a tensor is read, and the
index is looked at with `checkpoints.dcp`, which knows nothing but descriptions of tensors, before torch unpickles it.
All processes must see one file system. Every function here is called by all processes together.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from guiderail.checkpoints.dcp import DcpFolder
from guiderail.checkpoints.manifest import sha256_file
from guiderail.checkpoints.save import StateError, publish, state_folders

HEAD = "state.json"
T = TypeVar("T")


def save_sharded(
    folder: Path, step: int, parts: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any], keep: int = 2
) -> Path:
    """Publish `folder/state-<step>` with the tensors of all processes by part and name, and remove all but the newest
    `keep`. Tensors may be DTensors (sharded) or plain ones (alike in all processes)."""
    final = folder / f"state-{step:08d}"
    if agreed(lambda: final.exists()):  # same step again, e.g. a stop right after a save
        return final
    tensors = {part: dict(named) for part, named in parts.items() if named}

    def write(beside: Path) -> None:
        dist.barrier()
        save(tensors, checkpoint_id=str(beside), no_dist=False)
        files = {f.name: sha256_file(f) for f in sorted(beside.iterdir())}
        head = {"step": step, "processes": dist.get_world_size(), "files": files, "meta": dict(meta)}
        (beside / HEAD).write_text(json.dumps(head, indent=1))

    if dist.get_rank() == 0:
        publish(final, write)
        for old in state_folders(folder)[:-keep]:
            shutil.rmtree(old)
    else:
        dist.barrier()
        save(tensors, checkpoint_id=str(final.with_name(final.name + ".tmp")), no_dist=False)
    dist.barrier()
    return final


def newest_sharded(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest state folder and its head, every file checked against its hash; None when there is none. Needs no
    process group. Raises StateError."""
    found = state_folders(folder)
    if not found:
        return None
    newest = found[-1]
    try:
        head = json.loads((newest / HEAD).read_bytes())
        files, _, _ = dict(head["files"]), int(head["step"]), dict(head["meta"])
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise StateError(f"{newest / HEAD}: damaged ({type(e).__name__}); delete {newest} and resume") from None
    for name, digest in files.items():
        if not (newest / name).is_file() or sha256_file(newest / name) != digest:
            raise StateError(f"{newest / name}: damaged (sha256 is not the recorded one); delete {newest} and resume")
    return newest, head


def load_sharded(
    folder: Path, room: Callable[[set[str]], Mapping[str, Mapping[str, Tensor]]]
) -> tuple[int, dict[str, Any]] | None:
    """Restore the newest state in place; (step, meta), or None when there is none.

    room: given the names of the saved optimiser tensors, the tensors to fill, by part and name. Raises StateError,
    alike in all processes.
    """
    found = agreed(lambda: newest_sharded(folder))
    if found is None:
        return None
    newest, head = found
    saved = DcpFolder(newest).forms
    optimizer = {n.removeprefix("optimizer.") for n in saved if n.startswith("optimizer.")}
    tensors = {part: dict(named) for part, named in room(optimizer).items() if named}
    wanted = {f"{part}.{name}" for part, named in tensors.items() for name in named}
    if wanted != set(saved):
        differ = sorted(wanted ^ set(saved))[:3]
        raise StateError(f"{newest}: holds other tensors than this model: {differ}; delete the attempt to start over")
    load(tensors, checkpoint_id=str(newest))
    return int(head["step"]), dict(head["meta"])


def sharded_weights(folder: Path) -> dict[str, Tensor]:
    """The whole trained tensors of the newest state by name, on CPU; needs no process group. Raises StateError."""
    found = newest_sharded(folder)
    if found is None:
        raise StateError(f"{folder}: holds no state")
    stored = DcpFolder(found[0], "weights.")
    return {name: stored.tensor(name) for name in stored.forms}


def agreed(ask: Callable[[], T]) -> T:
    """What `ask` gives in the first process, in all of them; what it raises there is raised everywhere."""
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = ask()
        except Exception as e:
            answer[1] = e
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    value: T = answer[0]
    return value
