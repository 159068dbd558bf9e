"""Run checkpoints on a benchmark: what is played, what is refused, what is remembered.

Guarantees: a checkpoint is never measured on tasks its lineage was trained on (OverlapError names them);
infrastructure and judge errors are run again and, when they persist, excluded and counted, never scored; results are
remembered under a digest of everything that can change them (weights, processor, tasks, prompt, sampling, code), so
that base and SFT are played once for all recipes; a killed evaluation goes on with the next checkpoint.
Does not compare checkpoints: see `stats` and the report.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

import guiderail
from guiderail import plugins
from guiderail.bench import records
from guiderail.checkpoints import manifest as manifests
from guiderail.checkpoints.manifest import sha256_file
from guiderail.errors import InputError
from guiderail.params import Evaluate
from guiderail.rollout.types import Episode
from guiderail.seeds import derive_seed
from guiderail.tasks import splits
from guiderail.tasks.types import TaskSpec

CODE = ("actions", "bench", "envs", "models", "pool", "rollout", "seeds.py", "stages/evaluate.py", "tasks")
KEEP = 64  # remembered results; the oldest go first
Job = tuple[TaskSpec, int]


@dataclass(frozen=True)
class Subject:
    """A checkpoint under test: its name (base, sft, rl), folder, and the seed its sampling derives from."""

    name: str
    folder: Path
    seed: int = 0


@dataclass(frozen=True)
class Result:
    """Rows of one subject (last attempt of each planned episode), errors of earlier attempts by cause, and the work
    behind them: steps and sampled tokens of all attempts, whether they were played now or are `remembered`.

    `replay_steps`: those of `env_steps` along recordings. `frames` is the folder that holds the frames of `strips`
    (checkpoint, task, episode number), and may hold others.
    """

    rows: pd.DataFrame
    resampled: dict[str, int]
    env_steps: int
    tokens: int
    seconds: float
    frames: Path
    strips: list[tuple[str, str, int]]
    remembered: bool = False
    replay_steps: int = 0


def costs(results: Iterable[Result]) -> dict[str, int]:
    """The work behind some results, which no cache changes: env_steps, of them replay_steps, tokens."""
    found = list(results)
    return {k: sum(getattr(r, k) for r in found) for k in ("env_steps", "replay_steps", "tokens")}


def plan(manifest: splits.Manifest, benchmark: str, params: Evaluate) -> list[Job]:
    """The (task, episode number) pairs to play, in the order of the manifest: all splits.

    `params.episodes` per split and template: the first instances, then (when sampling) the same ones again; greedy
    repeats would be copies, so they are not played. Raises InputError when the manifest is of another suite.
    """
    if manifest["suite"] != benchmark:
        raise InputError(
            f"benchmark {benchmark!r}: the manifest holds tasks of suite {manifest['suite']!r}. "
            f"Set sweep.benchmark to [{manifest['suite']}], or provision.suite to {benchmark}."
        )
    jobs: list[Job] = []
    for split in manifest["splits"]:
        by_template: dict[str, list[TaskSpec]] = {}
        for task in splits.tasks(manifest, split):
            by_template.setdefault(task.template, []).append(task)
        for tasks in by_template.values():
            wanted = params.episodes or len(tasks)
            if params.temperature == 0:
                wanted = min(wanted, len(tasks))
            jobs += [(tasks[i % len(tasks)], i // len(tasks)) for i in range(wanted)]
    return jobs


def check_subject(manifest: splits.Manifest, folder: Path) -> manifests.TrainedOn:
    """Check a checkpoint's files and that it was not trained on what is tested. Returns what it was trained on.

    A folder without manifest.json (a model from elsewhere) was trained on nothing of ours. Raises OverlapError and
    ManifestError.
    """
    if not (folder / manifests.FILE).exists():
        return manifests.TrainedOn()
    trained = manifests.verify_files(folder).trained_on
    splits.check_no_overlap(manifest, trained.instances)
    same_suite = trained.suite in ("", manifest["suite"])
    both = sorted(set(trained.templates) & set(manifest["heldout_templates"])) if same_suite else []
    if both:
        raise splits.OverlapError(
            f"{folder}: trained on held-out templates {', '.join(both)}. Evaluate with the manifest it was trained "
            "with, or train again."
        )
    return trained


def checkpoint_digest(folder: Path) -> str:
    """Digest of every file of a checkpoint (weights, configuration, processor), its parents' included."""
    names = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in manifests.UNHASHED)
    parts: dict[str, Any] = {p.relative_to(folder).as_posix(): sha256_file(p) for p in names}
    if (folder / "adapter_config.json").exists():
        parent = manifests.read(folder).parent
        parts["parent"] = checkpoint_digest(manifests.check_link(parent, "parent", folder))
    return manifests.digest_json(parts)


def code_digest(parts: Iterable[str] = CODE) -> str:
    """Digest of the source files that can change what an episode does, loaded plugins included. parts: folders and
    files of the package."""
    root = Path(guiderail.__file__).parent
    found = (f for part in parts for f in ((root / part).rglob("*") if (root / part).is_dir() else [root / part]))
    files = sorted(f for f in found if f.suffix in (".py", ".js") and f.is_file())
    own = {f.relative_to(root).as_posix(): sha256_file(f) for f in files}
    return manifests.digest_json(own | plugins.digests())


def choose_strips(rows: pd.DataFrame, count: int) -> list[tuple[str, str, int]]:
    """Up to `count` episodes to show: one failure of every cause (half of them at most), then successes and failures in
    turn, each of another template, longer ones first.

    Taken from fresh and held-out tasks where there are any; the order is by hash of the task, so that different
    checkpoints tend to show the same tasks.
    """
    done = records.measured(rows)
    unseen = done[done["split"] != "train"]
    pool = (unseen if len(unseen) else done).to_dict("records")
    pool.sort(key=lambda r: (r["steps"] < 2, derive_seed("strip", str(r["task"]))))
    chosen: list[tuple[str, str, int]] = []
    used: set[str] = set()
    for cause in sorted({str(r["cause"]) for r in pool if not r["success"]}):
        own = [r for r in pool if not r["success"] and r["cause"] == cause]
        example = next((r for r in own if r["template"] not in used), own[0])
        if len(chosen) < count // 2:
            used.add(str(example["template"]))
            chosen.append((str(example["checkpoint"]), str(example["task"]), int(example["episode"])))
    for turn in range(2 * count):
        wanted = turn % 2 == 0
        found = next((r for r in pool if bool(r["success"]) == wanted and r["template"] not in used), None)
        if found is not None and len(chosen) < count:
            used.add(str(found["template"]))
            chosen.append((str(found["checkpoint"]), str(found["task"]), int(found["episode"])))
    return chosen


def last_attempts(episodes: Sequence[Episode], name: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """(rows, errors of the attempts that were run again by "kind/cause") of all attempts of one subject."""
    last: dict[tuple[str, int], Episode] = {}
    again: dict[str, int] = {}
    for e in sorted(episodes, key=lambda e: e.attempt):
        key = (e.task.id, e.sibling)
        if key in last:
            cause = f"{last[key].outcome.kind}/{last[key].outcome.cause}"
            again[cause] = again.get(cause, 0) + 1
        last[key] = e
    return records.table(records.row(e, name, number) for (_, number), e in last.items()), again


Play = Callable[[Path], tuple[list[Episode], float]]


def measure(subject: Subject, identity: Any, cache: Path, strips: int, play: Play) -> Result:
    """The result of a subject, remembered under the digest of `identity` or played now.

    play(folder) plays all jobs, puts frames as <sha256>.png into the folder it is given, and returns all attempts and
    the seconds spent. One process plays a subject at a time; others wait and then read.
    """
    cache.mkdir(parents=True, exist_ok=True)
    entry = cache / manifests.digest_json({"identity": identity, "subject": subject.name, "strips": strips})[:32]
    with FileLock(f"{entry}.lock"):
        if not (entry / "result.json").exists():
            _remember(entry, subject, strips, play)
            _prune(cache, keep=entry)
            return _read(entry, remembered=False)
    os.utime(entry)
    return _read(entry, remembered=True)


def _remember(entry: Path, subject: Subject, strips: int, play: Play) -> None:
    partial = entry.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "all").mkdir(parents=True)
    episodes, seconds = play(partial / "all")
    rows, again = last_attempts(episodes, subject.name)
    chosen = choose_strips(rows, strips)
    (partial / "frames").mkdir()
    for _, task, number in chosen:
        row = rows[(rows["task"] == task) & (rows["episode"] == number)].iloc[0]
        for sha in {*json.loads(row["frames"]), row["last_frame"]}:
            shutil.copyfile(partial / "all" / f"{sha}.png", partial / "frames" / f"{sha}.png")
    shutil.rmtree(partial / "all")
    rows.to_parquet(partial / "episodes.parquet", index=False)
    found = {
        "resampled": again,
        "env_steps": sum(len(e.steps) for e in episodes),
        "tokens": sum(len(s.completion.ids) for e in episodes for s in e.steps),
        "seconds": seconds,
        "strips": chosen,
    }
    (partial / "result.json").write_text(json.dumps(found))
    shutil.rmtree(entry, ignore_errors=True)
    os.rename(partial, entry)


def _read(entry: Path, remembered: bool) -> Result:
    found = json.loads((entry / "result.json").read_text())
    strips = [(str(c), str(t), int(n)) for c, t, n in found.pop("strips")]
    rows = pd.read_parquet(entry / "episodes.parquet").astype(records.COLUMNS)
    return Result(rows=rows, frames=entry / "frames", strips=strips, remembered=remembered, **found)


def _prune(cache: Path, keep: Path) -> None:
    entries = sorted((p for p in cache.iterdir() if (p / "result.json").exists()), key=lambda p: p.stat().st_mtime)
    for old in entries[: max(0, len(entries) - KEEP)]:
        if old != keep:
            shutil.rmtree(old, ignore_errors=True)
            Path(f"{old}.lock").unlink(missing_ok=True)
