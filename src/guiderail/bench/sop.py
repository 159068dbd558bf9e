"""Recorded benchmarks: SOP (semi-online) and the teacher-forced AndroidControl High and Low protocols.

    sop    the policy's own past answers are its history; a trajectory ends at the first step that misses the expert
    high   every step with the expert's past as history; the goal alone
    low    the same, with the step's own instruction

Guarantees: one JSON line per trajectory, keyed by episode id, with what was asked for, answered and why it missed;
written and synced as it ends, so that a killed run goes on where it was; lines of another model, data or rule are
refused, never mixed. An engine that fails is an error of its trajectory: excluded, counted, and run again next time; an
answer that cannot be read is a miss of its step. Numbers: `sop_metrics`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from guiderail.actions.types import Action
from guiderail.actions.wire import action_dumps
from guiderail.bench.protocols import Protocol
from guiderail.bench.records import rounded
from guiderail.checkpoints.manifest import digest_json
from guiderail.envs.types import InfraError
from guiderail.errors import InputError
from guiderail.rewards.match import RULES, Match, Rules, match
from guiderail.rewards.match_reference import reference_sop_match, reference_train_match
from guiderail.tasks.recorded import RecordedStep, Recording

Scorer = Literal["guiderail", "reference_sop", "reference_train"]


@dataclass(frozen=True)
class Past:
    """A step of the history: the frame, what was done there, and the text it was said in ("" for an expert's)."""

    frame: str
    action: Action | None
    text: str = ""


@dataclass(frozen=True)
class Query:
    """What the policy is asked. instruction: the step's own, "" but under "low". history: oldest first."""

    episode: str
    step: int
    goal: str
    instruction: str
    frame: str
    width: int
    height: int
    history: tuple[Past, ...]


@dataclass(frozen=True)
class Prediction:
    """What the policy answered. action None: nothing could be read, and `problem` says why. For the record: its
    thought, the tokens as sampled and their log-probs, sha256 of the frame it saw, seconds it took."""

    action: Action | None
    text: str = ""
    problem: str = ""
    thought: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    frame: str = ""
    seconds: float = 0.0


Predict = Callable[[Query], Prediction]
"""Asks the policy; raises InfraError when there is no answer to judge (engine down, time-out)."""


def verdict(predicted: Action | None, step: RecordedStep, scorer: Scorer, rules: Rules = RULES) -> Match:
    """Match of one step under a scorer (guiderail: with these tolerances). NotImplementedError where the reference's
    evaluator raises it."""
    if scorer == "guiderail":
        return match(predicted, step.expected, step.width, step.height, rules)
    return (reference_sop_match if scorer == "reference_sop" else reference_train_match)(predicted, step)


def play(
    recording: Recording,
    predict: Predict,
    protocol: Protocol = "sop",
    scorer: Scorer = "guiderail",
    rules: Rules = RULES,
) -> dict[str, Any]:
    """The line of one trajectory.

    n: its steps. s: leading matches. steps: one record per step that was asked. error: None, or {kind, detail}, and
    then s is None. Under "reference_sop" an answer that cannot be read, or an expected action that the reference cannot
    score, sets s to 0 as it does there.
    """
    history: list[Past] = []
    steps: list[dict[str, Any]] = []
    leading, missed, void = 0, False, False
    for k, step in enumerate(recording.steps):
        low = step.instruction if protocol == "low" else ""
        if protocol == "low" and not low:
            raise InputError(f"episode {recording.id}, step {k}: no instruction of its own; play it as 'high'")
        query = Query(recording.id, k, recording.goal, low, step.frame, step.width, step.height, tuple(history))
        try:
            said = predict(query)
        except InfraError as e:
            return _line(recording, protocol, None, steps, {"kind": e.cause, "detail": str(e)})
        try:
            found = verdict(said.action, step, scorer, rules)
        except NotImplementedError as e:
            found, void = Match(False, False, None, str(e)), True
        void |= scorer == "reference_sop" and said.action is None
        steps.append(_step(k, step, said, found))
        missed |= not found.exact
        leading += not missed
        if protocol == "sop":
            history.append(Past(step.frame, said.action, said.text))
            if missed:
                break
        else:
            history.append(Past(step.frame, step.expected.action))
    return _line(recording, protocol, 0 if void else leading, steps, None)


def _step(k: int, step: RecordedStep, said: Prediction, found: Match) -> dict[str, Any]:
    try:
        predicted = action_dumps(said.action) if said.action is not None else ""
    except ValueError as e:  # outside the algebra: a record is not the place to fail
        predicted, said = "", replace(said, action=None, problem=str(e))
    return {
        "step": k,
        "expected": action_dumps(step.expected.action),
        "predicted": predicted,
        **{k: getattr(said, k) for k in ("text", "problem", "thought", "frame")},
        "ids": list(said.ids),
        "logprobs": rounded(said.logprobs),
        "seconds": round(said.seconds, 3),
        **asdict(found),
    }


def _line(
    recording: Recording, protocol: str, leading: int | None, steps: list[dict[str, Any]], error: dict[str, str] | None
) -> dict[str, Any]:
    n = len(recording.steps)
    success = None if leading is None else leading == n
    return {
        "episode_id": recording.id,
        "goal": recording.goal,
        "protocol": protocol,
        "n": n,
        "s": leading,
        "success": success,
        "steps": steps,
        "error": error,
    }


@dataclass
class Lines:
    """The JSONL file of one run. config: digest of everything that can change a line."""

    path: Path
    config: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(self) -> None:
        """Take what is there. A last line that was cut short by a kill is taken off. Raises InputError on lines of
        another configuration or a damaged file."""
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with self.path.open("r+b") as f:
                f.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError:
                raise InputError(f"{self.path}, line {number}: not JSON; move the file away and run again") from None
            if row.get("config") != self.config:
                raise InputError(
                    f"{self.path}, line {number}: made with configuration {str(row.get('config'))[:12]}, this run is "
                    f"{self.config[:12]} (model, data, protocol or scorer differ); write to another file"
                )
            self.rows[row["episode_id"]] = row

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a line and sync it; a later line of an episode replaces an earlier one."""
        line = {**row, "config": self.config}
        self.rows[line["episode_id"]] = line
        with self.path.open("ab") as f:
            f.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
            f.flush()
            os.fsync(f.fileno())


def config_digest(
    recordings: Sequence[Recording], identity: Any, protocol: Protocol, scorer: Scorer, rules: Rules = RULES
) -> str:
    """Digest of the model (`identity`, any plain values), the data, the protocol and the rules."""
    data = [
        [r.id, r.goal, [[s.frame, s.width, s.height, s.instruction, repr(s.expected)] for s in r.steps]]
        for r in recordings
    ]
    return digest_json(
        {"identity": identity, "data": data, "protocol": protocol, "scorer": scorer, "rules": asdict(rules)}
    )


def run(
    recordings: Sequence[Recording],
    predict: Predict,
    out: Path,
    identity: Any,
    *,
    protocol: Protocol = "sop",
    scorer: Scorer = "guiderail",
    rules: Rules = RULES,
    workers: int = 1,
    done: Callable[[int, int], None] = lambda k, n: None,
) -> list[dict[str, Any]]:
    """Play what `out` does not hold yet (or holds as an error), `workers` trajectories at a time.

    Returns all lines in the order of the recordings. identity: plain values that name the model and its sampling.
    done(finished, total) is called after each. Whatever `predict` raises but InfraError ends the run.
    """
    lines = Lines(out, config_digest(recordings, identity, protocol, scorer, rules))
    out.parent.mkdir(parents=True, exist_ok=True)
    lines.read()
    todo = [r for r in recordings if r.id not in lines.rows or lines.rows[r.id]["error"] is not None]
    finished = len(recordings) - len(todo)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in as_completed([pool.submit(play, r, predict, protocol, scorer, rules) for r in todo]):
                lines.add(future.result())
                finished += 1
                done(finished, len(recordings))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [lines.rows[r.id] for r in recordings]
