"""One episode in full, read from the file it is stored in, as plain JSON for the page, the exports and comparison.

Guarantees: every text is as it was stored; what a format does not hold is listed under `missing` with the reason, and
no field is made up for it. Per step: frame, thought, text, action, why it could not be read, tokens with their
log-probs at sampling and in training, votes, advantage, seconds. Frames are named by digest and may be absent from
disk: `frame_there` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from guiderail.report.filmstrip import describe
from guiderail.report.viewer.reading import beside, mean_vote
from guiderail.report.viewer.sources import Source

SHA = re.compile(r"[0-9a-f]{64}")
There = Callable[[str], bool]
NOT_KEPT = {
    "evaluation": {
        "timing": "evaluation keeps the seconds of the whole episode",
        "trainer": "nothing was trained on it",
        "votes": "no judge of steps took part",
        "advantage": "nothing was trained on it",
    },
    "demo": {
        "tokens": "a scripted expert samples no tokens",
        "timing": "demonstrations are not timed",
        "last_frame": "the screen after the last action was not kept",
        "votes": "no judge of steps took part",
        "advantage": "SFT weights all steps alike",
    },
}
FRAMES = {
    "demo": "its files are gone; `guiderail replay` makes them again",
    "rollout": "RL keeps those of the first episode of each iteration; `guiderail replay` makes them again",
    "evaluation": "evaluate.film_strips says of how many episodes they are kept; `guiderail replay` makes them again",
}
NOT_LOOKED = "nobody looked: only desktop suites compare files before and after"


def load(row: Mapping[str, Any], there: There) -> dict[str, Any]:
    """The episode of an index row (`Explorer.one`). Raises FileNotFoundError when its file has gone."""
    path, root, number = Path(row["path"]), Path(row["root"]), int(row["number"])
    source = Source(path, row["kind"], row["run"], row["recipe"], row["seed"], root, "", bool(row["live"]))
    own = {"demo": _demo, "evaluation": _evaluation, "rollout": _rollout}[row["kind"]](source, number)
    names: tuple[str, ...] = (
        "key",
        "run",
        "kind",
        "recipe",
        "seed",
        "checkpoint",
        "suite",
        "template",
        "domain",
        "split",
        "task",
    )
    names += ("iteration", "advantage", "disagreement", "sibling", "attempt", "live")
    found = {k: row[k] for k in names} | {"group": row["grp"]} | own
    for step in found["steps"]:
        step["frame_there"] = bool(step["frame"]) and there(step["frame"])
        step["action_text"] = describe(step["action"]) if step["action"] else ""
    found["last_frame_there"] = bool(found["last_frame"]) and there(found["last_frame"])
    if found["side_effects"] is None:
        found["missing"]["side_effects"] = NOT_LOOKED
    if not all(s["frame_there"] for s in found["steps"]):
        found["missing"]["frames"] = FRAMES[row["kind"]]
    return found


def action(text: Any) -> dict[str, Any] | None:
    """A stored action as an object; None where there is none or it is not one."""
    try:
        found = json.loads(text) if isinstance(text, str) and text else text
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _step(step: int, frame: str, thought: str, text: str | None, act: Any, **more: Any) -> dict[str, Any]:
    blank = {"parse_error": None, "tokens": None, "votes": None, "advantage": None, "seconds_policy": None}
    blank |= {"seconds_env": None, "sampling": None, "reward": None, "matched": None}
    return {"step": step, "frame": frame, "thought": thought, "text": text, "action": action(act)} | blank | more


def _demo(source: Source, number: int) -> dict[str, Any]:
    with source.path.open(encoding="utf-8") as lines:
        d = next(json.loads(line) for i, line in enumerate(lines) if i == number)
    steps = [_step(i, s["frame"], s["thought"], None, s["action"]) for i, s in enumerate(d["steps"])]
    return {
        "instruction": d["instruction"], "steps": steps, "last_frame": "", "spec": d["task"],
        "outcome": {"kind": "success", "cause": "env_done", "reward": d["reward"], "detail": ""},
        "missing": dict(NOT_KEPT["demo"]), "seconds": None, "side_effects": None,
    }  # fmt: skip


_TOLD = ("frames", "thoughts", "texts", "actions", "problems", "ids", "logprobs", "matched")
"""Columns of `bench.records` with an entry per step."""


def _evaluation(source: Source, number: int) -> dict[str, Any]:
    d = pq.read_table(source.path).slice(number, 1).to_pylist()[0]
    told = {k: json.loads(d.get(k) or "[]") for k in _TOLD}
    steps, missing = [], dict(NOT_KEPT["evaluation"])

    def at(name: str, i: int) -> Any:
        return told[name][i] if told[name] else None

    for i, frame in enumerate(told["frames"]):
        tokens = {"ids": at("ids", i), "behaviour": at("logprobs", i), "trainer": None} if told["ids"] else None
        more = {"parse_error": at("problems", i) or None, "matched": at("matched", i), "tokens": tokens}
        steps.append(_step(i, frame, told["thoughts"][i], told["texts"][i], told["actions"][i], **more))
    if not told["ids"]:
        missing["tokens"] = "an older evaluation, which kept texts alone"
    outcome = {"kind": d["kind"], "cause": d["cause"], "reward": d["reward"], "detail": d["detail"] or ""}
    effects = d.get("side_effects")
    return {
        "instruction": d["instruction"] or "", "steps": steps, "last_frame": d["last_frame"] or "", "spec": None,
        "outcome": outcome, "missing": missing, "seconds": d["seconds"],
        "side_effects": None if effects is None else list(json.loads(effects)),
    }  # fmt: skip


def _of(path: Path, episode: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path, filters=[("episode_id", "=", episode)]).to_pylist()
    return found


def _rollout(source: Source, number: int) -> dict[str, Any]:
    d = pq.read_table(source.path).slice(number, 1).to_pylist()[0]
    training = beside(source, "training")
    trained = {t["step"]: t for t in _of(training, d["id"])} if training.exists() else {}
    steps, missing = [], {}
    for s in sorted(_of(beside(source, "steps"), d["id"]), key=lambda s: s["step"]):
        own = trained.get(s["step"], {})
        judged = s.get("votes") is not None and (len(s["votes"]) > 0 or s.get("votes_invalid"))
        votes = {"valid": s.get("votes"), "invalid": s.get("votes_invalid"), "mean": mean_vote(s.get("votes"))}
        steps.append(
            _step(
                s["step"], s["frame"], s["thought"], s["text"], s["action"],
                parse_error=s["parse_error"] or None, tokens=_tokens(s, own.get("logprobs")),
                votes=votes if judged else None, advantage=own.get("advantage"),
                seconds_policy=s["seconds_policy"], seconds_env=s["seconds_env"], reward=s.get("reward"),
                matched=s.get("matched"), finish_reason=s["finish_reason"],
                sampling={**{k: s[k] for k in ("temperature", "top_p", "max_new_tokens")}, "seed": str(s["seed"])},
            )
        )  # fmt: skip
    if not any(s["votes"] for s in steps):
        missing["votes"] = "no judge of steps took part"
    if not trained:
        missing["advantage"] = "no training record: the update is still to come, or the run is older than the record"
    elif not any(s["tokens"]["trainer"] for s in steps):
        missing["trainer"] = "not trained on: its group gave no signal (advantage 0), or it was not measured"
    outcome = {"kind": d["outcome"], "cause": d["cause"], "reward": d["reward"], "detail": d["detail"] or ""}
    spec = {k: d[k] for k in ("suite", "template", "seed", "split", "wording", "domain", "max_steps", "threshold")}
    return {
        "instruction": d["instruction"] or "", "steps": steps, "last_frame": d["last_frame"] or "", "spec": spec,
        "outcome": outcome, "missing": missing, "side_effects": d.get("side_effects"),
        "seconds": sum(s["seconds_policy"] + s["seconds_env"] for s in steps) if steps else None,
    }  # fmt: skip


def _tokens(step: Mapping[str, Any], trainer: Any) -> dict[str, Any]:
    return {
        "ids": step["ids"],
        "behaviour": step["logprobs"],
        "trainer": list(trainer) if trainer is not None else None,
    }


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any] | None:
    """{step, what} of the first step at which two episodes part: its screen, its action, or one has ended. None: never.

    Actions are compared as parsed; where both could not be read, as written.
    """
    for i in range(max(len(a["steps"]), len(b["steps"]))):
        if i >= min(len(a["steps"]), len(b["steps"])):
            return {"step": i, "what": "one of them has ended"}
        one, two = a["steps"][i], b["steps"][i]
        if one["frame"] != two["frame"]:
            return {"step": i, "what": "they see different screens"}
        if (one["action"] or one["text"]) != (two["action"] or two["text"]):
            return {"step": i, "what": "they act differently"}
    return None
