"""Thoughts for demonstrated steps from a teacher model, one request a step, remembered by content.

Guarantees: an answer is paid for once: it is written (atomically) under the hash of everything that was asked, before
anything else is done with it, so that a killed stage, another seed or another run finds it again; a thought is used
only if the policy can say it (one line, short enough not to be cut), and a step
without one ends the run or drops its demonstration, named and counted, never silently; what was asked, who answered
and what it cost stands in `Annotations.record`. The teacher sees what the agent saw at that step and before, never the
rest of the episode or its length.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guiderail.endpoint import Endpoint, EndpointError, image_part, text_part
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.params_train import Cot

VERSION = 1
SYSTEM = (
    "You annotate single steps of somebody who works a graphical screen and solves a task. You get the task, the "
    "actions so far, the screen, and the action that was taken next. Write what that step does, as a short imperative "
    'in one line, e.g. click "Ok" or type "Ann". Nothing else: no reasons, no coordinates, no quotes around the line.'
)
Usable = Callable[[int, int, str], str]
"""(line, step, thought) -> why the policy could not say it, "" when it can."""


@dataclass(frozen=True)
class Asked:
    """One step to annotate. line: of demos.jsonl, from 0."""

    line: int
    step: int
    frame: str
    text: str
    key: str


@dataclass
class Annotations:
    """thoughts by (line, step); missing: (line, step) -> why; what it took (prices of all answers, of this run's)."""

    thoughts: dict[tuple[int, int], str] = field(default_factory=dict)
    missing: dict[tuple[int, int], str] = field(default_factory=dict)
    record: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    remembered: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    price: float = 0.0
    price_now: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Counts and costs of all answers, whenever they were paid for, for metrics.json."""
        counts = {"answers": self.asked + self.remembered, "thoughts": len(self.thoughts), "missing": len(self.missing)}
        return counts | {k: getattr(self, k) for k in ("tokens_in", "tokens_out", "price")}

    def from_cache(self) -> dict[str, float]:
        """Of these, what was not asked and paid for now."""
        return {"answers": self.remembered, "price": self.price - self.price_now}


def steps_of(file: Path, cot: Cot) -> list[Asked]:
    """What to ask for the demonstrations in `file`, in order. Raises InputError naming a damaged line."""
    found: list[Asked] = []
    for number, line in enumerate(file.read_bytes().splitlines()):
        try:
            demo = json.loads(line)
            before: list[str] = []
            for i, step in enumerate(demo["steps"]):
                action = json.dumps(step["action"], sort_keys=True, ensure_ascii=False)
                done = "\n".join(f"{k + 1}. {a}" for k, a in enumerate(before)) or "none"
                text = f"Task: {demo['instruction']}\nActions so far:\n{done}\nAction taken on this screen: {action}"
                frame = str(step["frame"])
                found.append(Asked(number, i, frame, text, _key(cot, text, frame)))
                before.append(action)
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(
                f"{file}, line {number + 1}: {type(e).__name__}: {e}. Run `guiderail demos` again, or restore the "
                "folder (dvc checkout)."
            ) from e
    return found


def _key(cot: Cot, text: str, frame: str) -> str:
    asked = [VERSION, cot.endpoint.model, cot.temperature, cot.max_tokens, SYSTEM, text, frame]
    return hashlib.sha256(json.dumps(asked, ensure_ascii=True).encode()).hexdigest()


def annotate(
    steps: Sequence[Asked],
    frames: FrameStore,
    endpoint: Endpoint,
    cot: Cot,
    cache: Path,
    usable: Usable,
    done: Callable[[int], None] = lambda n: None,
) -> Annotations:
    """Ask for the thoughts of `steps`. Raises InputError when one is missing and `cot.on_missing` is error; answers
    that came by then are remembered, so the next run asks for the rest only."""
    cache.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_annotate(steps, frames, endpoint, cot, cache, usable, done))


async def _annotate(
    steps: Sequence[Asked], frames: FrameStore, endpoint: Endpoint, cot: Cot, cache: Path, usable: Usable,
    done: Callable[[int], None],
) -> Annotations:  # fmt: skip
    found = Annotations()
    records: dict[tuple[int, int], dict[str, Any]] = {}
    turn = asyncio.Semaphore(2 * cot.endpoint.concurrency)  # the endpoint bounds the calls; this, the frames in memory

    async def one(step: Asked) -> None:
        async with turn:
            thought, why, tried = "", "", 0
            while not thought and tried < cot.tries:
                tried += 1
                try:
                    answer = await answered(step, tried - 1, frames, endpoint, cot, cache, found)
                except EndpointError as e:
                    why = str(e)
                    break
                said, why = read_thought(answer)
                why = why or usable(step.line, step.step, said)
                thought = "" if why else said
        place = (step.line, step.step)
        if thought:
            found.thoughts[place] = thought
        else:
            found.missing[place] = why
            if cot.on_missing == "error":
                raise InputError(
                    f"demonstration {step.line + 1}, step {step.step}: no usable thought from {cot.endpoint.model} "
                    f"after {tried} tries ({why}). Raise sft.cot.tries or max_tokens, ask another model, or set "
                    "sft.cot.on_missing: drop. What was answered is kept in .work and not asked again."
                )
        records[place] = {
            "line": step.line, "step": step.step, "frame": step.frame, "key": step.key, "tries": tried,
            "model": cot.endpoint.model, "thought": thought or None, "missing": why or None,
        }  # fmt: skip
        done(1)

    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(one(step))
    except BaseExceptionGroup as e:
        raise e.exceptions[0] from None
    found.price = endpoint.price_of(found.tokens_in, found.tokens_out)
    found.price_now = endpoint.price
    found.record = [records[k] for k in sorted(records)]
    return found


async def answered(
    step: Asked, attempt: int, frames: FrameStore, endpoint: Endpoint, cot: Cot, cache: Path, found: Annotations
) -> dict[str, Any]:
    """The remembered answer to a step, or a new one, remembered. Raises EndpointError."""
    file = cache / step.key[:2] / f"{step.key}-{attempt}.json"
    answer = _remembered(file)
    if answer is None:
        content = [text_part(step.text), image_part(frames.get_png(step.frame))]
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        reply = await endpoint.chat(
            messages, temperature=cot.temperature, max_tokens=cot.max_tokens, seed=int(step.key[:8], 16) + attempt
        )
        answer = {
            "text": reply.texts[0], "finish": reply.finish[0], "model": reply.model, "tokens_in": reply.tokens_in,
            "tokens_out": reply.tokens_out, "version": VERSION, "asked": step.text, "frame": step.frame,
            "asked_model": cot.endpoint.model,
        }  # fmt: skip
        write_once(file, answer)
        found.asked += 1
    else:
        found.remembered += 1
    found.tokens_in += int(answer["tokens_in"])
    found.tokens_out += int(answer["tokens_out"])
    return answer


def read_thought(answer: dict[str, Any]) -> tuple[str, str]:
    """(thought on one line, why it cannot be used)."""
    thought = " ".join(str(answer["text"]).split())
    if answer["finish"] == "length":
        return thought, "the answer was cut at max_tokens"
    return thought, "" if thought else "the answer is empty"


def _remembered(file: Path) -> dict[str, Any] | None:
    """A stored answer; None when there is none. A damaged file (the disk's doing) is asked for again."""
    try:
        answer = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return None
    return (
        answer if isinstance(answer, dict) and {"text", "finish", "tokens_in", "tokens_out"} <= answer.keys() else None
    )


def write_once(file: Path, value: dict[str, Any]) -> None:
    """Write JSON beside, fsync, rename: a reader sees all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=file.parent, prefix=".cot-", suffix=".tmp")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False)
            f.flush()
            os.fsync(f.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
