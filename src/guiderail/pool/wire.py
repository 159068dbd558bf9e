"""What travels between pool client and server: tasks, results, errors.

A request is a JSON object. A reply is a JSON object too, or, for reset and step, one binary body: the length of a
JSON header (4 bytes, big-endian), the header, then the PNG as it is (base64 would cost a third more bytes and two
copies). Guarantees: `decode_result(encode_result(r)) == r`, PNG included; a body that does not fit is a ValueError,
never a half result.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from guiderail.actions.types import Action, LongPress, Wait
from guiderail.envs.types import Observation, StepResult
from guiderail.tasks.types import TaskSpec

MAX_BODY = 1 << 20
TOKEN_ENV = "GUIDERAIL_POOL_TOKEN"
RESULT_TYPE = "application/x-guiderail-result"
JSON_TYPE = "application/json"
OWN_S = 60.0
"""Longest time that an action may ask for; environments refuse a longer one at once."""

_TASK_FIELDS = {
    "suite": str,
    "template": str,
    "seed": int,
    "split": str,
    "wording": int,
    "domain": str,
    "max_steps": int,
    "threshold": float,
}


def own_seconds(action: Action) -> float:
    """Seconds that `action` itself asks for: they come on top of what a call may take, or an agent that waits would
    look like a screen that hangs."""
    return min(max(action.seconds, 0.0), OWN_S) if isinstance(action, Wait | LongPress) else 0.0


def task_from_json(data: Any) -> TaskSpec:
    """Strict inverse of `TaskSpec.to_json`. Raises ValueError naming what is wrong."""
    if not isinstance(data, dict):
        raise ValueError("task must be a JSON object")
    for name, value in data.items():
        kind = _TASK_FIELDS.get(name)
        if kind is None:
            raise ValueError(f"task: unknown field {name!r}; known: {', '.join(_TASK_FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"task.{name} must be of type {kind.__name__}, got {str(value)[:80]!r}")
    missing = [name for name in ("suite", "template", "seed") if name not in data]
    if missing:
        raise ValueError(f"task: field {missing[0]} is missing")
    return TaskSpec.from_json(data)


def encode_result(result: StepResult) -> bytes:
    """Binary body of a reset or step reply."""
    seen = result.observation
    header = orjson.dumps(
        {
            "frame": seen.frame,
            "width": seen.width,
            "height": seen.height,
            "instruction": seen.instruction,
            "step": seen.step,
            "done": result.done,
            "raw_reward": result.raw_reward,
            "info": result.info,
            "png": len(seen.png),
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
    return len(header).to_bytes(4, "big") + header + seen.png


def decode_result(body: bytes, verify: bool = True) -> StepResult:
    """Inverse of `encode_result`. `verify` checks the PNG against its sha256. Raises ValueError on anything else."""
    size = int.from_bytes(body[:4], "big")
    if len(body) < 4 + size:
        raise ValueError(f"result of {len(body)} bytes is cut short (header of {size} bytes)")
    try:
        head = orjson.loads(body[4 : 4 + size])
        png = body[4 + size :]
        seen = Observation(head["frame"], head["width"], head["height"], head["instruction"], head["step"], png)
        result = StepResult(seen, bool(head["done"]), float(head["raw_reward"]), head["info"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as e:
        raise ValueError(f"result header is not what a pool sends: {e}") from None
    if len(png) != head["png"] or (verify and png and hashlib.sha256(png).hexdigest() != seen.frame):
        raise ValueError("the frame of a result was damaged on its way")
    return result


@dataclass(frozen=True)
class Reply:
    """Status, body and content type of an answer."""

    status: int
    body: bytes
    type: str = JSON_TYPE


def refusal(status: int, code: str, message: str, **more: object) -> Reply:
    """The reply {"error": code, "message": sentence, ...}."""
    return Reply(status, orjson.dumps({"error": code, "message": message, **more}))
