"""Index rows of a source: one per episode, from whichever of the three formats it is in.

Guarantees: what a format does not hold is None, never a default; texts are the model's own, cut for the index only
(NUL and lone surrogates become U+FFFD there, because SQLite's search stops at them). Columns that other stages add to
the tables are used where they are there (votes) and not missed where they are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from guiderail.report.filmstrip import describe
from guiderail.report.viewer.names import evaluated
from guiderail.report.viewer.sources import Source, training_part

TEXT_LIMIT = 4000
PART_LIMIT = 1000
"""Characters that are searched of an episode, and of each of its texts (one long one must not hide the rest)."""
CELL = ("kind", "run", "recipe", "seed", "checkpoint", "suite", "template", "domain", "split", "outcome", "cause")
_OF_TASK = CELL[5:]


@dataclass(frozen=True)
class Row:
    """An episode in the index. `cell`: values of CELL; `number`: its row in the file; `words`: its searched texts."""

    key: str
    number: int
    cell: tuple[str, ...]
    task: str
    group: str | None
    sibling: int | None
    attempt: int | None
    iteration: int | None
    instruction: str
    reward: float | None
    steps: int
    tokens: int | None
    seconds: float | None
    unreadable: int | None
    advantage: float | None
    disagreement: float | None
    frame: str
    words: str


def clean(text: object, limit: int = TEXT_LIMIT) -> str:
    """`text` as SQLite can hold and search it."""
    return str(text)[:limit].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def disagreement(votes: list[float | None], success: bool | None) -> float | None:
    """How far a judge of steps is from the outcome: |(mean score + 1) / 2 - success|, in [0, 1].

    votes: mean vote of each judged step in [-1, 1], None where there was no valid vote. None without votes or outcome.
    """
    known = [v for v in votes if v is not None]
    if not known or success is None:
        return None
    return abs((sum(known) / len(known) + 1) / 2 - float(success))


def read(source: Source) -> Iterator[Row]:
    """The rows of a source. Raises OSError or ValueError when its file is gone or not what its name says."""
    yield from {"demo": _demos, "rollout": _rollouts, "evaluation": _evaluation}[source.kind](source)


def mean_vote(votes: Any) -> float | None:
    """Mean of the valid votes of a step; None without one."""
    return sum(votes) / len(votes) if votes is not None and len(votes) else None


def _cell(source: Source, **of: Any) -> tuple[str, ...]:
    known = {"kind": source.kind, "run": source.prefix, "recipe": source.recipe, "seed": source.seed, **of}
    return tuple(clean(known.get(name) or "") for name in CELL)


def _words(parts: list[str]) -> str:
    return clean("\n".join(p[:PART_LIMIT] for p in parts if p))


def _action(text: str | None) -> str:
    try:
        found = json.loads(text) if text else None
        return describe(found) if isinstance(found, dict) else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _demos(source: Source) -> Iterator[Row]:
    with source.path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            d = json.loads(line)
            task, steps = d["task"], d["steps"]
            name = "/".join(str(task[k]) for k in ("suite", "template", "seed", "wording"))
            texts = [t for s in steps for t in (s["thought"], describe(s["action"]))]
            cell = _cell(
                source, checkpoint="expert", outcome="success", cause="env_done",
                **{k: task.get(k) for k in ("suite", "template", "domain", "split")},
            )  # fmt: skip
            yield Row(
                f"{source.prefix}/{name}", number, cell, name, None, None, None, None, clean(d["instruction"]),
                d["reward"], len(steps), None, None, 0, None, None, steps[0]["frame"] if steps else "", _words(texts),
            )  # fmt: skip


def _evaluation(source: Source) -> Iterator[Row]:
    wanted = ["checkpoint", "split", "suite", "template", "domain", "task", "episode", "instruction", "reward", "kind"]
    wanted += ["cause", "attempt", "steps", "parse_failures", "tokens", "seconds", "actions", "texts", "frames"]
    for number, d in enumerate(pq.read_table(source.path, columns=wanted).to_pylist()):
        frames = json.loads(d["frames"] or "[]")
        texts = [*json.loads(d["texts"] or "[]"), *map(_action, json.loads(d["actions"] or "[]"))]
        yield Row(
            evaluated(source.prefix, d["checkpoint"], d["task"], d["episode"]), number,
            _cell(source, **{k: d[k] for k in ("checkpoint", *_OF_TASK) if k in d}, outcome=d["kind"]),
            d["task"], None, d["episode"], d["attempt"], None, clean(d["instruction"] or ""), d["reward"], d["steps"],
            d["tokens"], d["seconds"], d["parse_failures"], None, None, frames[0] if frames else "",
            _words([str(t) for t in texts]),
        )  # fmt: skip


def beside(source: Source, name: str) -> Path:
    """The table `name` that belongs to a rollout source: the same part, or the one file."""
    folder = source.root / f"{name}.parquet"
    if name == "training" and folder.is_dir():
        return training_part(source.root, source.path.name)
    return folder / source.path.name if source.path.parent.name == "episodes.parquet" else folder


def _advantages(source: Source) -> dict[str, float]:
    """Advantage per episode of the part's own iteration, as far as the trainer has got."""
    path = beside(source, "training")
    if not path.exists():
        return {}
    rows = pq.read_table(path, columns=["episode_id", "advantage"], filters=[("step", "=", -1)]).to_pylist()
    return {d["episode_id"]: d["advantage"] for d in rows if d["advantage"] is not None}


def _rollouts(source: Source) -> Iterator[Row]:
    advantages, steps = _advantages(source), _by_episode(beside(source, "steps"))
    for number, d in enumerate(pq.read_table(source.path).to_pylist()):
        own = steps.get(d["id"], [])
        texts = [t for s in own for t in (s["text"], _action(s["action"]))]
        success = {"success": True, "failure": False}.get(d["outcome"])
        votes = [mean_vote(s.get("votes")) for s in own]
        seconds = sum(s["seconds_policy"] + s["seconds_env"] for s in own) if own else None
        yield Row(
            f"{source.prefix}/{d['id']}", number,
            _cell(source, checkpoint="training", **{k: d[k] for k in _OF_TASK}),
            d["task_id"], d["group"], d["sibling"], d["attempt"], d["policy_version"], clean(d["instruction"] or ""),
            d["reward"], d["n_steps"], d["n_tokens"], seconds, sum(bool(s["parse_error"]) for s in own),
            advantages.get(d["id"]), disagreement(votes, success), own[0]["frame"] if own else "",
            _words([str(t) for t in texts]),
        )  # fmt: skip


def _by_episode(path: Path) -> dict[str, list[dict[str, Any]]]:
    wanted = ["episode_id", "frame", "text", "action", "parse_error", "seconds_policy", "seconds_env"]
    there = set(pq.read_schema(path).names)
    found: dict[str, list[dict[str, Any]]] = {}
    for d in pq.read_table(path, columns=[*wanted, *({"votes"} & there)]).to_pylist():
        found.setdefault(d["episode_id"], []).append(d)
    return found
