"""Demonstrations as training rows, written by the same prompt builder as rollouts.

Guarantees: one row per context chunk, spans over exactly what the expert wrote and `<|im_end|>`; sizes come from the
frames themselves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
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


def load_demos(folder: Path, policy: Policy, prompt: Prompt, limit: int | None = None) -> DemoRows:
    """Rows of `folder`/demos.jsonl (the first `limit` episodes). Raises InputError naming a line that is damaged, lacks
    its frame, or holds an action the codec cannot write."""
    builder = PromptBuilder(policy.tokenizer, prompt, policy.image_tokens, policy.resized)
    frames = FrameStore(folder / "frames", cache=4)
    sizes: dict[str, tuple[int, int]] = {}
    rows: list[ChunkRow] = []
    names: list[str] = []
    tasks: list[str] = []
    file = folder / "demos.jsonl"
    for number, line in enumerate(file.read_bytes().splitlines()):
        if limit is not None and number >= limit:
            break
        try:
            demo = json.loads(line)
            task = TaskSpec.from_json(demo["task"]).id
            steps = []
            for step in demo["steps"]:
                sha = step["frame"]
                if sha not in sizes:
                    sizes[sha] = frames.get_image(sha).size
                thought = step["thought"] if prompt.thought else ""
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
    return DemoRows(rows, names, tasks, frames)
