"""Episodes as Parquet: `episodes.parquet`, `steps.parquet`, `rows.parquet` in one folder, written whole or not at all.

Guarantees: `read_episodes(dir)` gives back what `write_episodes` was given, log-probs to the bit (float32 for rows,
float64 for steps). With `part` (a round of an RL iteration), each table is a folder of files `part-00007.parquet`;
writing a part again replaces it, and a part counts only once its episodes are there (they are written last). Either
form is read by `pandas.read_parquet(dir / "episodes.parquet")`. Does not store pixels: frames are digests into a
FrameStore.

Schema (list columns hold one entry per token, frame or span):
    episodes  id, group, sibling, attempt, policy_version, suite, template, seed, split, wording, domain, max_steps,
    threshold, task_id,
              instruction, outcome, cause, reward (null when not measured), detail, n_steps, n_tokens, last_frame,
              side_effects (null when nobody looked)
    steps     episode_id, step, frame (the one the policy saw), chunk, prompt_len, ids, logprobs, finish_reason, text,
              weight_version (as a server reported it, else ""), temperature, top_p, max_new_tokens, seed, thought,
              action (canonical JSON), parse_error, policy_version, seconds_policy, seconds_env, votes, votes_invalid,
              reward and matched (null without a recording), patched
    rows      episode_id, chunk, ids, frames, span_start, span_end, logprobs, steps, temperature
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from guiderail.envs.types import Outcome
from guiderail.models.rows import ChunkRow
from guiderail.rollout.types import Completion, Episode, SamplingParams, StepRecord
from guiderail.tasks.types import TaskSpec

_TEXT, _I32, _I64, _F32, _F64 = pa.string(), pa.int32(), pa.int64(), pa.float32(), pa.float64()
_TASK = {"suite": _TEXT, "template": _TEXT, "seed": _I64, "split": _TEXT, "wording": _I32, "domain": _TEXT}
_TASK |= {"max_steps": _I32, "threshold": _F64}
EPISODES = pa.schema(
    {"id": _TEXT, "group": _TEXT, "sibling": _I32, "attempt": _I32, "policy_version": _I32, **_TASK, "task_id": _TEXT}
    | {"instruction": _TEXT, "outcome": _TEXT, "cause": _TEXT, "reward": _F64, "detail": _TEXT}
    | {"n_steps": _I32, "n_tokens": _I32, "last_frame": _TEXT, "side_effects": pa.list_(_TEXT)}
)
STEPS = pa.schema(
    {"episode_id": _TEXT, "step": _I32, "frame": _TEXT, "chunk": _I32, "prompt_len": _I32}
    | {"ids": pa.list_(_I32), "logprobs": pa.list_(_F64), "finish_reason": _TEXT, "text": _TEXT}
    | {"weight_version": _TEXT}
    | {"temperature": _F64, "top_p": _F64, "max_new_tokens": _I32, "seed": _I64}
    | {"thought": _TEXT, "action": _TEXT, "parse_error": _TEXT, "policy_version": _I32}
    | {"seconds_policy": _F64, "seconds_env": _F64, "votes": pa.list_(_I32), "votes_invalid": _I32}
    | {"reward": _F64, "matched": pa.bool_(), "patched": _TEXT}
)
ROWS = pa.schema(
    {"episode_id": _TEXT, "chunk": _I32, "ids": pa.list_(_I32), "frames": pa.list_(_TEXT), "span_start": pa.list_(_I32)}
    | {"span_end": pa.list_(_I32), "logprobs": pa.list_(_F32), "steps": pa.list_(_I32), "temperature": _F64}
)
SCHEMAS = {"rows": ROWS, "steps": STEPS, "episodes": EPISODES}  # in the order of writing


def write_episodes(folder: str | Path, episodes: Sequence[Episode], part: int | None = None) -> None:
    """Write episodes, as single files or as part number `part`.

    Raises ValueError on an episode id that occurs twice.
    """
    ids = {e.id for e in episodes}
    if len(ids) != len(episodes):
        raise ValueError(f"{folder}: {len(episodes)} episodes with {len(ids)} different ids; give each its own")
    tables = {
        "episodes": [_episode_record(e) for e in episodes],
        "steps": [_step_record(e, s) for e in episodes for s in e.steps],
        "rows": [_row_record(e, i, r) for e in episodes for i, r in enumerate(e.rows)],
    }
    for name, schema in SCHEMAS.items():
        _write(_path(folder, name, part), pa.Table.from_pylist(tables[name], schema=schema))


def read_episodes(folder: str | Path, part: int | None = None) -> list[Episode]:
    """Episodes of `part`, or of all parts in order. Raises FileNotFoundError when there are none."""
    root = Path(folder) / "episodes.parquet"
    if part is None and root.is_dir():
        return [e for n in stored_parts(folder) for e in read_episodes(folder, n)]
    tables = {name: pq.read_table(_path(folder, name, part), schema=s).to_pylist() for name, s in SCHEMAS.items()}
    steps: dict[str, list[StepRecord]] = defaultdict(list)
    rows: dict[str, list[ChunkRow]] = defaultdict(list)
    for d in tables["steps"]:
        steps[d["episode_id"]].append(_step(d))
    for d in tables["rows"]:
        rows[d["episode_id"]].append(_row(d))
    return [_episode(d, tuple(steps[d["id"]]), tuple(rows[d["id"]])) for d in tables["episodes"]]


def stored_parts(folder: str | Path) -> list[int]:
    """Numbers of the complete parts, ascending."""
    return sorted(int(p.stem.removeprefix("part-")) for p in (Path(folder) / "episodes.parquet").glob("part-*.parquet"))


def _path(folder: str | Path, name: str, part: int | None) -> Path:
    root = Path(folder) / f"{name}.parquet"
    return root if part is None else root / f"part-{part:05d}.parquet"


def _write(path: Path, table: pa.Table) -> None:
    """Write beside, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # a name that dataset readers skip
    try:
        with open(beside, "wb") as f:
            pq.write_table(table, f, compression="zstd")
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _episode_record(e: Episode) -> dict[str, Any]:
    o = e.outcome
    return {
        **{k: getattr(e, k) for k in ("id", "group", "sibling", "attempt", "instruction", "last_frame")},
        **asdict(e.task),
        "policy_version": e.steps[0].policy_version if e.steps else None,
        "task_id": e.task.id,
        "outcome": o.kind,
        "cause": o.cause,
        "reward": o.reward,
        "detail": o.detail,
        "n_steps": len(e.steps),
        "n_tokens": sum(len(s.completion.ids) for s in e.steps),
        "side_effects": e.side_effects,
    }


def _episode(d: dict[str, Any], steps: tuple[StepRecord, ...], rows: tuple[ChunkRow, ...]) -> Episode:
    task = TaskSpec(**{k: d[k] for k in _TASK})
    outcome = Outcome(d["outcome"], d["cause"], d["reward"], d["detail"])
    effects = None if d["side_effects"] is None else tuple(d["side_effects"])
    head = (d["id"], d["group"], d["sibling"], d["attempt"], task, d["instruction"])
    return Episode(*head, outcome, steps, rows, d["last_frame"], effects)


_STEP = ("step", "frame", "chunk", "prompt_len", "thought", "action", "parse_error", "policy_version")
_SECONDS = ("seconds_policy", "seconds_env")
_JUDGED = ("votes_invalid", "reward", "matched", "patched")
_COMPLETION = ("ids", "logprobs", "finish_reason", "text", "weight_version")
_SAMPLING = ("temperature", "top_p", "max_new_tokens", "seed")


def _step_record(e: Episode, s: StepRecord) -> dict[str, Any]:
    return {
        "episode_id": e.id,
        **{k: getattr(s, k) for k in _STEP + _SECONDS + _JUDGED},
        "votes": s.votes,
        **{k: getattr(s.completion, k) for k in _COMPLETION},
        **{k: getattr(s.sampling, k) for k in _SAMPLING},
    }


def _step(d: dict[str, Any]) -> StepRecord:
    completion = Completion(
        tuple(d["ids"]), tuple(d["logprobs"]), d["finish_reason"], d["text"], d["weight_version"] or ""
    )
    sampling = SamplingParams(**{k: d[k] for k in _SAMPLING})
    known = {k: d[k] for k in _STEP + _SECONDS + _JUDGED}
    return StepRecord(completion=completion, sampling=sampling, votes=tuple(d["votes"]), **known)


def _row_record(e: Episode, chunk: int, r: ChunkRow) -> dict[str, Any]:
    return {
        "episode_id": e.id,
        "chunk": chunk,
        "ids": r.ids,
        "frames": r.frames,
        "span_start": [s for s, _ in r.spans],
        "span_end": [t for _, t in r.spans],
        "logprobs": r.logprobs,
        "steps": r.steps,
        "temperature": r.temperature,
    }


def _row(d: dict[str, Any]) -> ChunkRow:
    return ChunkRow(
        ids=np.asarray(d["ids"], dtype=np.int64),
        frames=tuple(d["frames"]),
        spans=tuple(zip(d["span_start"], d["span_end"], strict=True)),
        logprobs=np.asarray(d["logprobs"], dtype=np.float32),
        steps=tuple(d["steps"]),
        temperature=d["temperature"],
    )
