r"""The embedded judge: a small model of the policy's architecture, read at the sign of its answer.

Guarantees: one forward per step, whatever the number of votes: they are drawn from the distribution of the token after
`\boxed{` (all tokens compete; one that is neither sign is an invalid vote), each with a seed hashed from the step, so
that a vote depends on the step alone, not on batch mates or timing; `probabilities` is what calibration measures.
Judges in a thread of its own while the rollout goes on; steps that wait meanwhile share a batch.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from guiderail.models.features import Frames
from guiderail.models.policy import Policy
from guiderail.models.prompts import PromptBuilder
from guiderail.models.rows import ChunkRow, Prompt
from guiderail.params import Prompt as PromptParams
from guiderail.rewards.changes import Change, change_of, repeated
from guiderail.rewards.prm_prompts import JudgePrompts
from guiderail.rewards.process import StepContext, StepKind
from guiderail.rollout.judging import Votes
from guiderail.seeds import derive_seed

Floats = NDArray[np.float64]


class PrmModel:
    """A trained judge: `policy` holds its weights, `frames` gives the pixels."""

    def __init__(self, policy: Policy, prompt: PromptParams, frames: Frames, batch: int = 64) -> None:
        self.policy, self.frames, self.batch = policy, frames, batch
        self.prompts = JudgePrompts(PromptBuilder(policy.tokenizer, prompt, policy.image_tokens, policy.resized))

    def prompt(self, step: StepContext) -> Prompt:
        """The step as the model reads it. Raises KeyError for a frame that is not stored."""
        return self.prompts.prompt(step, self._change(step))

    def row(self, step: StepContext, good: bool) -> ChunkRow:
        """The step as the model is trained on it."""
        return self.prompts.row(step, self._change(step), good)

    def facts(self, step: StepContext) -> tuple[StepKind, Change, bool]:
        """What it is told of a step beside words and pixels: the kind, the change of the screen, whether it was said
        before."""
        return step.kind, self._change(step), repeated(step)

    def _change(self, step: StepContext) -> Change:
        return change_of(step, lambda sha: np.asarray(self.frames.get(sha)))

    def signs(self, steps: Sequence[StepContext], temperature: float = 1.0) -> Floats:
        """[n, 2]: probability of + and of - as the next token, of all tokens, at `temperature`."""
        found = [np.zeros((0, 2))]
        with torch.inference_mode():
            for i in range(0, len(steps), self.batch):
                prompts = [self.prompt(s) for s in steps[i : i + self.batch]]
                packed = self.policy.pack([(p.ids, p.frames) for p in prompts], self.frames, label="judged step")
                last = torch.tensor(packed.lengths, device=self.policy.device) - 1
                hidden = self.policy.hidden(packed)[torch.arange(len(prompts), device=last.device), last]
                logp = torch.log_softmax(self.policy.masked_logits(hidden).double() / temperature, dim=-1)
                found.append(logp[:, [self.prompts.plus, self.prompts.minus]].exp().cpu().numpy())
        return np.concatenate(found)

    def probabilities(self, steps: Sequence[StepContext]) -> Floats:
        """[n]: probability of + among the two signs, at temperature 1."""
        signs = self.signs(steps)
        return np.asarray(signs[:, 0] / np.maximum(signs.sum(axis=1), 1e-300), dtype=np.float64)


class Signs(Protocol):
    """What votes are drawn from: a `PrmModel`, here or elsewhere."""

    batch: int
    """Steps worth asking for at once."""

    def signs(self, steps: Sequence[StepContext], temperature: float = 1.0) -> Floats:
        """See `PrmModel.signs`."""
        ...


def draw(plus: float, minus: float, m: int, seed: int) -> Votes:
    """`m` votes with these probabilities; the rest of the mass is invalid."""
    u = np.random.default_rng(seed).random(m)
    valid = [1 if x < plus else -1 for x in u if x < plus + minus]
    return Votes(tuple(valid), m - len(valid))


_Asked = tuple[StepContext, "Future[Votes]"]


class PrmJudge:
    """Votes of a `PrmModel`; `votes` and `temperature` as in `rl.step_wise.voting`. `close` ends its thread."""

    def __init__(self, model: Signs, *, votes: int, temperature: float, seed: int = 0) -> None:
        self.model, self.m, self.temperature, self.seed = model, votes, temperature, seed
        self.judged = self.batches = 0
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="prm-judge", daemon=True)
        self._thread.start()

    def __enter__(self) -> PrmJudge:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Judge what was asked, then end. Idempotent."""
        if self._thread.is_alive():
            self._asked.put(None)
            self._thread.join()

    async def votes(self, step: StepContext) -> Votes:
        """`m` votes on `step`. Raises what the model raises (RowMismatch, a frame that is not stored)."""
        answer: Future[Votes] = Future()
        self._asked.put((step, answer))
        return await asyncio.wrap_future(answer)

    def _work(self) -> None:
        while (first := self._asked.get()) is not None:
            batch, last = [first], False
            while len(batch) < self.model.batch and not self._asked.empty():
                more = self._asked.get()
                if more is None:
                    last = True
                    break
                batch.append(more)
            self._judge(batch)
            if last:
                return

    def _judge(self, batch: list[_Asked]) -> None:
        try:
            signs = self.model.signs([s for s, _ in batch], self.temperature)
        except Exception as e:
            for _, answer in batch:
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(e)
            return
        self.judged, self.batches = self.judged + len(batch), self.batches + 1
        for (step, answer), (plus, minus) in zip(batch, signs, strict=True):
            if answer.set_running_or_notify_cancel():  # else nobody waits any more: its episode was given up
                answer.set_result(draw(plus, minus, self.m, derive_seed("judge", self.seed, step.key)))
