"""Demonstrations as training rows, written by the same prompt builder as rollouts.

Guarantees: one row per context chunk, spans over exactly what the expert wrote and `<|im_end|>`; sizes come from the
frames themselves. Thoughts are the recorded ones, or those that are given; a demonstration that lacks one of those is
left out and named in `dropped`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guiderail.actions.wire import action_from_json
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.models.policy import Policy
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import ChunkRow
from guiderail.params import Prompt
from guiderail.tasks.types import TaskSpec


@dataclass(frozen=True)
class DemoRows:
    """Rows with their names and the ids of the tasks they come from."""

    rows: list[ChunkRow]
    names: list[str]
    tasks: list[str]
    frames: FrameStore
    dropped: list[str] = field(default_factory=list)


Thoughts = Mapping[tuple[int, int], str]
"""Thought by (line of demos.jsonl from 0, step)."""


def load_demos(
    folder: Path, policy: Policy, prompt: Prompt, limit: int | None = None, thoughts: Thoughts | None = None
) -> DemoRows:
    """Rows of `folder`/demos.jsonl (the first `limit` episodes). thoughts: in place of the recorded ones. Raises
    InputError naming a line that is damaged, lacks its frame, or holds an action the codec cannot write."""
    builder = PromptBuilder(policy.tokenizer, prompt, policy.image_tokens, policy.resized)
    frames = FrameStore(folder / "frames", cache=4)
    sizes: dict[str, tuple[int, int]] = {}
    rows: list[ChunkRow] = []
    names: list[str] = []
    tasks: list[str] = []
    dropped: list[str] = []
    file = folder / "demos.jsonl"
    for number, line in enumerate(file.read_bytes().splitlines()):
        if limit is not None and number >= limit:
            break
        try:
            demo = json.loads(line)
            task = TaskSpec.from_json(demo["task"]).id
            steps = []
            if thoughts is not None and any((number, i) not in thoughts for i in range(len(demo["steps"]))):
                dropped.append(task)
                continue
            for i, step in enumerate(demo["steps"]):
                sha = step["frame"]
                if sha not in sizes:
                    sizes[sha] = frames.get_image(sha).size
                own = step["thought"] if thoughts is None else thoughts[number, i]
                thought = own if prompt.thought else ""
                codec = builder.codec_for(*sizes[sha])
                steps.append((sha, *sizes[sha], codec.render(action_from_json(step["action"]), thought)))
            made = builder.demo_rows(demo["instruction"], steps)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise InputError(
                f"{file}, line {number + 1}: {type(e).__name__}: {e}. Run `guiderail demos` again, or restore "
                "the folder (dvc checkout)."
            ) from e
        rows += made
        names += [f"demo {task} chunk {k}" for k in range(len(made))]
        tasks.append(task)
    return DemoRows(rows, names, tasks, frames, dropped)


def sayable(folder: Path, policy: Policy, prompt: Prompt) -> Callable[[int, int, str], str]:
    """A check of thoughts: (line, step, thought) -> why the policy could not say it before that step's action, "" when
    it can. Needs an undamaged demos.jsonl."""
    builder = PromptBuilder(policy.tokenizer, prompt, policy.image_tokens, policy.resized)
    frames = FrameStore(folder / "frames", cache=4)
    demos = [json.loads(line)["steps"] for line in (folder / "demos.jsonl").read_bytes().splitlines()]

    def check(line: int, step: int, thought: str) -> str:
        found = demos[line][step]
        codec = builder.codec_for(*frames.get_image(found["frame"]).size)
        text = codec.render(action_from_json(found["action"]), thought)
        needed = len(builder.completion_ids(text))
        if needed > prompt.max_new_tokens:
            return f"{thought!r} makes an answer of {needed} tokens, prompt.max_new_tokens = {prompt.max_new_tokens}"
        return ""

    return check
