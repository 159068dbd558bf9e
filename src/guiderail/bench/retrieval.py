"""Demonstration retrieval: the recorded demonstration nearest to a task, shown to the policy before it.

How near: `weight` * likeness of the instructions + (1 - weight) * likeness of the first screens.
- Instructions: cosine of hashed counts (words, pairs of words, and letter triples, in lower case), in [0, 1].
- Screens: 1 - mean absolute difference of the two as 16 x 16 grey pictures, in [0, 1].

Guarantees: only demonstrations of train templates from the train namespace are ever in the index (InputError names any
other), and a task never gets a demonstration of its own instance; the choice is a pure function of the demonstrations,
the task's instruction and its first screen (equals go to the smaller task id). No learned embedding and no network: the
plain method, so that what retrieval gains can be told from what an embedding model knows.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from guiderail.actions.wire import action_from_json
from guiderail.errors import InputError
from guiderail.models.frames import FrameStore
from guiderail.models.prompts import Example, PromptBuilder
from guiderail.tasks.splits import Manifest, namespace_of
from guiderail.tasks.types import TaskSpec

DIM = 4096
SIDE = 16
Floats = NDArray[np.float64]


def text_vector(text: str) -> Floats:
    """Hashed counts of words, word pairs and letter triples of `text`, of length 1 (0 for a text without any)."""
    words = re.findall(r"\w+", text.lower())
    joined = f" {' '.join(words)} "
    grams = [f"w:{w}" for w in words] + [f"p:{a} {b}" for a, b in pairwise(words)]
    grams += [f"c:{joined[i : i + 3]}" for i in range(len(joined) - 2)]
    vector = np.zeros(DIM)
    for gram, count in Counter(grams).items():
        vector[zlib.crc32(gram.encode()) % DIM] += count
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm else vector


def small(png: bytes) -> Floats:
    """The picture in PNG bytes as SIDE x SIDE grey values in [0, 1]."""
    with Image.open(io.BytesIO(png)) as image:
        grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(grey, dtype=np.float64) / 255.0


@dataclass(frozen=True)
class Demo:
    """A recorded demonstration; steps as in demos.jsonl."""

    task: TaskSpec
    instruction: str
    steps: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Found:
    """The nearest demonstration and how near it is (all in [0, 1])."""

    demo: Demo
    score: float
    text: float
    frame: float


class DemoIndex:
    """Demonstrations to choose from. weight: of the instructions. Raises InputError on one that may not be shown."""

    def __init__(self, demos: list[Demo], frames: FrameStore, manifest: Manifest, weight: float) -> None:
        for demo in demos:
            t = demo.task
            trained = t.suite == manifest["suite"] and t.template in manifest["train_templates"]
            if not trained or t.template in manifest["heldout_templates"] or namespace_of(t.seed) != "train":
                raise InputError(
                    f"demonstration {t.id}: not of a train task of manifest {manifest['hash'][:12]}, so showing it "
                    "would leak what is tested. Run `guiderail demos` again."
                )
        self.demos, self.frames, self.weight = sorted(demos, key=lambda d: d.task.id), frames, weight
        first = [frames.get_png(str(d.steps[0]["frame"])) for d in self.demos]
        self._texts = np.array([text_vector(d.instruction) for d in self.demos]).reshape(len(demos), DIM)
        self._screens = np.array([small(png) for png in first]).reshape(len(demos), SIDE, SIDE)

    @classmethod
    def read(cls, folder: Path, manifest: Manifest, weight: float) -> DemoIndex:
        """The demonstrations of `folder` (demos.jsonl, frames/). Raises InputError on a damaged line."""
        made = []
        for number, line in enumerate((folder / "demos.jsonl").read_bytes().splitlines(), 1):
            try:
                d = json.loads(line)
                if d["steps"]:
                    made.append(Demo(TaskSpec.from_json(d["task"]), str(d["instruction"]), tuple(d["steps"])))
            except (ValueError, KeyError, TypeError) as e:
                where = f"{folder / 'demos.jsonl'}, line {number}"
                raise InputError(f"{where}: {type(e).__name__}: {e}. Run `guiderail demos` again.") from e
        return cls(made, FrameStore(folder / "frames", cache=4), manifest, weight)

    def nearest(self, task: TaskSpec, instruction: str, png: bytes) -> Found | None:
        """The demonstration nearest to a task as it begins, never of the same instance; None when there is none."""
        text = self._texts @ text_vector(instruction)
        frame = 1.0 - np.abs(self._screens - small(png)).mean(axis=(1, 2))
        score = self.weight * text + (1.0 - self.weight) * frame
        key = (task.suite, task.template, task.seed)  # in any wording
        own = np.array([(d.task.suite, d.task.template, d.task.seed) == key for d in self.demos], dtype=np.bool_)
        if own.all():
            return None
        best = int(np.where(own, -1.0, score).argmax())
        return Found(self.demos[best], float(score[best]), float(text[best]), float(frame[best]))


def example_of(demo: Demo, builder: PromptBuilder, frames: FrameStore, steps: int) -> Example:
    """The first `steps` steps of a demonstration as the policy's own format writes them."""
    made = []
    for step in demo.steps[:steps]:
        sha = str(step["frame"])
        png = frames.get_png(sha)
        width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")  # PNG IHDR
        thought = str(step["thought"]) if builder.params.thought else ""
        text = builder.codec_for(width, height).render(action_from_json(step["action"]), thought)
        made.append((sha, width, height, text))
    return Example(demo.instruction, tuple(made))
