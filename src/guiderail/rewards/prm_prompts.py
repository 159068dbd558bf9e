r"""How the small process reward model reads a step, as token ids: the same in training, calibration and rollouts.

Layout:

    <|im_start|>system\nJudge the step.<|im_end|>\n
    <|im_start|>user\n{instruction}\n[Done: {history}\n]{frame before}\n{what it wrote}\n{frame after}\n
    {what was measured}<|im_end|>\n
    <|im_start|>assistant\n\boxed{+1}<|im_end|>

Guarantees: pieces are tokenised apart, so `\boxed{` never melts with the sign behind it, and the signs of the two
grades differ in their first token (ValueError else); text of pages and policies cannot write special tokens (as in
`models.prompts`, whose builder is used).
"""

from __future__ import annotations

import numpy as np

from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.rewards.changes import Change
from guiderail.rewards.process import StepContext
from guiderail.rewards.rubrics import ANSWER, GRADE, SHORT_SYSTEM, short_parts


class JudgePrompts:
    """Writes steps with the tokens of a policy's `builder`."""

    def __init__(self, builder: PromptBuilder) -> None:
        self.builder = builder
        encode = builder.encode
        self.system = (builder.user_open[0], *encode(f"system\n{SHORT_SYSTEM}"), *builder.turn_end)
        self.answer = encode(ANSWER)
        self.grades = {vote: (*encode(text), builder.end_id) for vote, text in GRADE.items()}
        self.plus, self.minus = self.grades[1][0], self.grades[-1][0]
        if self.plus == self.minus:
            raise ValueError(f"the tokenizer begins {GRADE[1]!r} and {GRADE[-1]!r} with one token; no sign to ask for")

    def prompt(self, step: StepContext, change: Change) -> Prompt:
        """The step up to and including `\\boxed{`: what comes next is the sign."""
        b = self.builder
        before, between, after = (b.encode(t) if t else () for t in short_parts(step, change))
        frame = b.frame_ids(step.width, step.height)
        ids = (*self.system, *b.user_open, *before, *frame, *between, *frame, *after, *b.assistant_open, *self.answer)
        return Prompt(ids, (step.before, step.after))

    def row(self, step: StepContext, change: Change, good: bool) -> ChunkRow:
        """A training row; its span is the sign alone, the one token that is ever asked for."""
        prompt, grade = self.prompt(step, change), self.grades[1 if good else -1]
        start, end = len(prompt.ids), len(prompt.ids) + 1
        return ChunkRow(
            ids=np.asarray([*prompt.ids, *grade], dtype=np.int64),
            frames=prompt.frames,
            spans=((start, end),),
            logprobs=np.full(end - start, np.nan, dtype=np.float32),
            steps=(0,),
        )
