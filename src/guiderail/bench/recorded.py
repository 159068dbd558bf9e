"""Recorded benchmarks by name: which trajectories, which protocol, and their lines as rows of the episode table.

    sop                     experts' episodes on fresh and held-out tasks (stage demos), semi-online
    android_control_sop     a file of AndroidControl-style trajectories, semi-online
    android_control_high    the same, teacher-forced, with the goal alone
    android_control_low     the same, with each step's own instruction

Guarantees: one row per trajectory with the columns of `bench.records`: success = every step matched, reward = share of
leading matches (semi-online) or of matched steps (teacher-forced); an engine's error is a row without a result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from guiderail.bench import records
from guiderail.bench.protocols import Protocol
from guiderail.checkpoints.manifest import digest_json, sha256_file
from guiderail.errors import InputError
from guiderail.params import Evaluate
from guiderail.rewards.match import PAGES, RULES, Rules
from guiderail.rollout.export import demo_recordings
from guiderail.tasks.android_control import load
from guiderail.tasks.recorded import Recording
from guiderail.tasks.types import TaskSpec


@dataclass(frozen=True)
class Trials:
    """What is played. tasks: of each recording, by its id. png: bytes of a frame. about: where it came from; where
    frames are not named by their content, `frames_sha256` in it says what `png` gives ("blank": grey screens)."""

    recordings: list[Recording]
    tasks: dict[str, TaskSpec]
    png: Callable[[str], bytes]
    rules: Rules
    about: dict[str, Any]


def own_trials(folder: Path, p: Evaluate) -> Trials:
    """The experts' episodes in `folder` (recorded/ of the demos stage): the first `p.episodes` of each split and
    template, 0 = all. Raises InputError when there are none."""
    file = folder / "demos.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]  # text may hold U+2028
    seen: dict[tuple[str, str], int] = {}
    kept = []
    for line in lines:
        key = line["task"]["split"], line["task"]["template"]
        seen[key] = seen.get(key, 0) + 1
        if not p.episodes or seen[key] <= p.episodes:
            kept.append(line)
    if not kept:
        raise InputError(f"{file}: no recorded episodes. Raise demos.recorded, or take sop out of sweep.benchmark.")

    def png(sha: str) -> bytes:
        return (folder / "frames" / f"{sha}.png").read_bytes()

    def size(sha: str) -> tuple[int, int]:
        head = png(sha)
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")  # PNG IHDR

    found = demo_recordings(kept, size)
    tasks = {r.id: TaskSpec.from_json(line["task"]) for r, line in zip(found, kept, strict=True)}
    return Trials(found, tasks, png, PAGES, {"file": file.as_posix(), "sha256": sha256_file(file)})


def android_trials(p: Evaluate, protocol: Protocol) -> Trials:
    """The first `p.episodes` trajectories of `p.android_control.path` (0 = all).

    Raises InputError on a damaged file, on missing screenshots unless `blank`, and on steps without an instruction
    under protocol "low"."""
    a = p.android_control
    file = Path(a.path)
    found, report = load(file, swipes=a.swipes or None, size_of=_size(Path(a.frames)) if a.frames else None)
    found = found[: p.episodes or None]
    if protocol == "low" and any(not s.instruction for r in found for s in r.steps):
        raise InputError(f"{file}: has steps without an instruction of their own; take android_control_low out")
    blank = _blank() if a.blank else None

    def png(name: str) -> bytes:
        return blank(name, found) if blank else (Path(a.frames) / Path(name).name).read_bytes()

    if blank is None:
        missing = [s.frame for r in found for s in r.steps if not (Path(a.frames) / Path(s.frame).name).is_file()]
        if missing:
            raise InputError(
                f"evaluate.android_control.frames = {a.frames!r}: lacks {len(missing)} screenshots, e.g. "
                f"{Path(missing[0]).name}. Extract them from AndroidControl, or set blank: true to show grey screens."
            )
    tasks = {
        r.id: TaskSpec("android_control", "android_control", k, "heldout", 0, "phone", len(r.steps))
        for k, r in enumerate(found)
    }
    about = {"file": file.as_posix(), "sha256": sha256_file(file), "report": report.to_json(), "blank": a.blank}
    names = sorted({Path(s.frame).name for r in found for s in r.steps})
    about["frames_sha256"] = "blank" if blank else digest_json([[n, sha256_file(Path(a.frames) / n)] for n in names])
    return Trials(found, tasks, png, RULES, about)


def _size(frames: Path) -> Callable[[str], tuple[int, int] | None]:
    def of(name: str) -> tuple[int, int] | None:
        path = frames / Path(name).name
        if not path.is_file():
            return None
        with path.open("rb") as f:
            head = f.read(24)
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")

    return of


def _blank() -> Callable[[str, Sequence[Recording]], bytes]:
    """Grey screens of the recorded sizes."""
    import io

    from PIL import Image

    sizes: dict[str, tuple[int, int]] = {}
    made: dict[tuple[int, int], bytes] = {}

    def png(name: str, found: Sequence[Recording]) -> bytes:
        if not sizes:
            sizes.update({s.frame: (s.width, s.height) for r in found for s in r.steps})
        size = sizes[name]
        if size not in made:
            out = io.BytesIO()
            Image.new("RGB", size, (128, 128, 128)).save(out, "PNG")
            made[size] = out.getvalue()
        return made[size]

    return png


def table(lines: Sequence[Mapping[str, Any]], trials: Trials, checkpoint: str) -> pd.DataFrame:
    """Rows of one checkpoint from its lines."""
    return records.table(_row(line, trials.tasks[line["episode_id"]], checkpoint) for line in lines)


def _row(line: Mapping[str, Any], task: TaskSpec, checkpoint: str) -> dict[str, Any]:
    steps, error = line["steps"], line["error"]
    done = error is None
    share = line["s"] / line["n"] if done else None
    if done and line["protocol"] != "sop":
        share = sum(s["exact"] for s in steps) / line["n"]
    whole = done and share == 1.0
    return {
        "checkpoint": checkpoint,
        "split": task.split,
        "suite": task.suite,
        "template": task.template,
        "domain": task.domain,
        "task": task.id,
        "episode": 0,
        "instruction": line["goal"],
        "success": whole if done else None,
        "reward": share,
        "kind": ("success" if whole else "failure") if done else "infra_error",
        "cause": "env_done" if done else error["kind"],
        "detail": "" if done else error["detail"],
        "attempt": 0,
        "steps": len(steps),
        "parse_failures": sum(bool(s["problem"]) for s in steps),
        "tokens": sum(len(s["ids"]) for s in steps),
        "seconds": sum(s["seconds"] for s in steps),
        "thoughts": json.dumps([s["thought"] for s in steps]),
        "actions": json.dumps([s["predicted"] for s in steps]),
        "texts": json.dumps([s["text"] for s in steps]),
        "problems": json.dumps([s["problem"] for s in steps]),
        "ids": json.dumps([s["ids"] for s in steps]),
        "logprobs": json.dumps([s["logprobs"] for s in steps]),
        "matched": json.dumps([s["exact"] for s in steps]),
        "frames": json.dumps([s["frame"] for s in steps]),
        "last_frame": "",  # a recording has no screen after its last action
    }
