"""Where episodes lie below a results folder and its attempt folder, and what their place says about them.

Guarantees: only what is whole is listed (a part of a rollout counts once its episodes are there, see `rollout.store`);
a file's stamp changes whenever its content can have changed; nothing is opened but the small attempt record. A folder
of episodes anywhere below the results folder is found, whatever stage wrote it. Reads no episode: see `reading`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SKIP = {"frames", "checkpoint", "model", "figures", "__pycache__"}
FRAMES = "frames"


@dataclass(frozen=True)
class Source:
    """One file of episodes.

    kind: demo, rollout or evaluation. run: the folder below results that holds it, as a name (`rl/grpo/seed0`).
    recipe, seed: "" where the place does not say. root: the folder that its frames and other tables lie in. live: part
    of an attempt that has not ended. stamp: size and time of last change of the file and of what belongs to it.
    """

    path: Path
    kind: str
    run: str
    recipe: str
    seed: str
    root: Path
    stamp: str
    live: bool = False

    @property
    def prefix(self) -> str:
        """What the keys of its episodes start with."""
        return f"live/{self.run}" if self.live else self.run


def sources(results: Path, work: Path | None = None) -> list[Source]:
    """All sources below `results`, and the rollouts of attempts in `work` (None: none)."""
    found = [s for folder in _folders(results) for s in _in_folder(folder, folder.relative_to(results).as_posix())]
    return found + (list(_attempts(work)) if work and work.is_dir() else [])


def frame_folders(results: Path, work: Path | None = None) -> list[Path]:
    """Every folder that may hold frames by digest, and the one that `guiderail replay` fills."""
    places = [folder / FRAMES for folder in _folders(results)]
    if work is not None:
        places += [work / "viewer" / FRAMES, *work.glob("*/*/rollouts/frames"), *work.glob("eval-cache/*/frames")]
    return [p for p in places if p.is_dir()]


def _folders(root: Path) -> Iterator[Path]:
    """Folders below `root` (itself included) that hold episodes; hidden ones (being written) are left out."""
    for at, folders, files in os.walk(root):
        if "demos.jsonl" in files or "episodes.parquet" in files or "episodes.parquet" in folders:
            yield Path(at)
        folders[:] = sorted(f for f in folders if f not in SKIP and not f.startswith(".") and ".parquet" not in f)


def _in_folder(folder: Path, place: str, live: bool = False) -> Iterator[Source]:
    parts = place.split("/")
    run = "/".join(p for p in parts if p != "rollouts") or folder.resolve().name
    seed = next((p[4:] for p in parts if p.startswith("seed") and p[4:].isdigit()), "")
    recipe = parts[1] if len(parts) > 2 and parts[0] in ("rl", "evaluate") else ""
    demos, table = folder / "demos.jsonl", folder / "episodes.parquet"
    if demos.is_file():
        yield Source(demos, "demo", run, "", "", folder, _stamp(demos), live)
    if table.is_dir():
        for part in sorted(table.glob("part-*.parquet")):
            also = [folder / "steps.parquet" / part.name, training_part(folder, part.name)]
            yield Source(part, "rollout", run, recipe, seed, folder, _stamp(part, *also), live)
    elif table.is_file():
        kind = "rollout" if (folder / "steps.parquet").exists() else "evaluation"
        yield Source(table, kind, run, recipe, seed, folder, _stamp(table, folder / "training.parquet"), live)


def training_part(folder: Path, name: str) -> Path:
    """The training record of a rollout part: that of its name, or of the first round of its iteration (the last one
    before it); a path that does not exist where there is none."""
    table = folder / "training.parquet"
    found = [p for p in table.glob("part-*.parquet") if p.name <= name]
    return max(found, default=table / name, key=lambda p: p.name)


def _attempts(work: Path) -> Iterator[Source]:
    for record in sorted(work.glob("*/*/record.json")):
        try:
            made = json.loads(record.read_text())
            place = "/".join([made["stage"], *(f"seed{v}" if k == "seed" else v for k, v in made["axes"].items())])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # being written, or gone: the next look sees it
        if (record.parent / "rollouts").is_dir():
            yield from _in_folder(record.parent / "rollouts", place, live=True)


def _stamp(*paths: Path) -> str:
    found = []
    for path in paths:
        try:
            s = path.stat()
        except OSError:
            continue
        found.append(f"{s.st_size}.{s.st_mtime_ns}")
    return " ".join(found)
