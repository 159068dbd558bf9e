"""What of params.yaml decides how much a run needs, as plain numbers.

Guarantees: lengths are upper bounds where memory is concerned (answers of prompt.max_new_tokens) and means where time
is (plan.answer_tokens); a screen counts the tokens that the processor makes of it. Text is counted by its letters,
three to a token, since the tokenizer need not be here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from guiderail.actions.codec import get_codec
from guiderail.capacity.shapes import Shape
from guiderail.params import Params
from guiderail.params_train import Rl, Tuning
from guiderail.tasks.suites import DESKTOPS

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
TURN = 12  # role, newlines, vision start and end around each frame and answer
INSTRUCTION = 60
PAST = 25  # of one past action in the summary that begins a later chunk
PAGE = (160, 224)  # a browser page of the small suite, as it is shown


@dataclass(frozen=True)
class Chunk:
    """Tokens of one chunk: `head` (system, instruction, summary), then per step `frame` and `answer`."""

    head: int
    frame: int
    answer: int
    steps: int

    @property
    def tokens(self) -> int:
        """All of a full chunk."""
        return self.head + self.steps * (self.frame + self.answer + TURN)


@dataclass(frozen=True)
class Setup:
    """One training run. actor, rollout: devices of each; shared: the same one does both, by turns."""

    shape: Shape
    width: int
    recompute: bool
    longest: Chunk
    usual: Chunk
    screen: tuple[int, int]
    actor: int
    rollout: int
    shared: bool
    vllm: bool
    concurrent: int
    rl: Rl
    online: bool

    def trainable(self, tuning: Tuning | Rl, train_vision: bool) -> int:
        """How many numbers are trained."""
        if tuning.mode == "lora":
            return self.shape.adapter(tuning.lora.r)
        return self.shape.total if train_vision else self.shape.text


def screen(p: Params) -> tuple[int, int]:
    """Pixels of the screen that is worked: a desktop's, or a page's."""
    if p.provision.suite in DESKTOPS:
        return p.env.desktop.width, p.env.desktop.height
    return PAGE


def chunk_of(p: Params, shape: Shape, answer: int) -> Chunk:
    """A chunk with answers of `answer` tokens."""
    system = len(get_codec(p.prompt.codec).system_prompt(p.prompt.system, p.prompt.thought)) // 3
    past = PAST * math.ceil(p.plan.episode_steps)
    return Chunk(system + INSTRUCTION + past, shape.sizing.tokens(*screen(p)), answer, p.prompt.chunk_steps)


def setup(p: Params, shape: Shape, recipe: str) -> Setup:
    """The numbers of one recipe (of several phases, the one with the longest rows forward)."""
    rl = max(p.phases_for(recipe), key=lambda x: x.micro_batch)
    ray = p.trainer.kind == "ray"
    actor, rollout = (p.trainer.actor, p.trainer.rollout) if ray else (1, 1)
    usual = min(p.plan.answer_tokens or p.prompt.max_new_tokens, p.prompt.max_new_tokens)
    vllm = p.engine.kind == "vllm"
    online = rl.algorithm != "semi_online"
    at_once = min(p.env.slots if online else 10**9, rl.groups * rl.group_size)
    concurrent = math.ceil(at_once / rollout)
    return Setup(
        shape=shape,
        width=WIDTH[p.model.dtype],
        recompute=p.model.recompute,
        longest=chunk_of(p, shape, p.prompt.max_new_tokens),
        usual=chunk_of(p, shape, usual),
        screen=screen(p),
        actor=actor,
        rollout=rollout,
        shared=not ray,
        vllm=vllm,
        concurrent=min(concurrent, p.engine.max_seqs) if vllm else concurrent,
        rl=rl,
        online=online,
    )
