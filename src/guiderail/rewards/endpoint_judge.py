"""The judge behind an OpenAI-compatible address: two screens and a rubric go there, graded boxes come back.

Guarantees: m votes a step, from one request of n = m where the server gives them, else from more; what cannot be read
counts as invalid; an endpoint that gives no answer raises (EndpointError), for a missing vote would look like an
undecided one. The seed of a request is hashed from the step. Keeps no frames: they are read when a step is judged.
"""

from __future__ import annotations

from typing import Any, Protocol

from guiderail.endpoint import Endpoint, image_part, text_part
from guiderail.models.frames import decoded
from guiderail.rewards.changes import change_of
from guiderail.rewards.process import StepContext, tally
from guiderail.rewards.rubrics import SYSTEM, long_parts
from guiderail.rollout.judging import Votes
from guiderail.seeds import derive_seed


class Pngs(Protocol):
    """Where frames come from (see `guiderail.models.frames.FrameStore`)."""

    def get_png(self, sha: str) -> bytes:
        """PNG bytes of a frame. Raises KeyError."""
        ...


def messages(step: StepContext, frames: Pngs) -> list[dict[str, Any]]:
    """The request's messages: the grader's role, then texts and screens in the order of time."""
    before, between, after = long_parts(step, change_of(step, lambda sha: decoded(frames.get_png(sha))))
    content = [text_part(before), image_part(frames.get_png(step.before)), text_part(between)]
    content += [image_part(frames.get_png(step.after)), text_part(after)]
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]


class EndpointJudge:
    """Votes of the model behind `endpoint`; `votes`, `temperature` and `max_new_tokens` as in `rl.step_wise.voting`."""

    def __init__(
        self, endpoint: Endpoint, frames: Pngs, *, votes: int, temperature: float, max_new_tokens: int, seed: int = 0
    ) -> None:
        self.endpoint, self.frames = endpoint, frames
        self.m, self.temperature, self.max_new_tokens, self.seed = votes, temperature, max_new_tokens, seed

    async def votes(self, step: StepContext) -> Votes:
        """`m` votes on `step`. Raises EndpointError."""
        answers: list[str] = []
        sent = messages(step, self.frames)
        while len(answers) < self.m:
            reply = await self.endpoint.chat(
                sent,
                temperature=self.temperature,
                max_tokens=self.max_new_tokens,
                n=self.m - len(answers),
                seed=derive_seed("judge", self.seed, step.key, len(answers)),
            )
            answers += reply.texts
        return tally(answers)
