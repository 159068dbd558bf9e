"""The seam between rollouts and whoever judges their steps (a state judge, a process reward model).

Guarantees: a judge sees a step right after it was done, before the next action, and may then look at the environment;
its verdict is gathered at the end of the episode, so that a slow judge works while the rollout goes on. Votes are +1 or
-1; an answer that is neither is counted as invalid, never stored as a vote. Does not judge.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from guiderail.actions.types import Action
from guiderail.envs.types import Env, Observation
from guiderail.tasks.types import TaskSpec


@dataclass(frozen=True)
class Votes:
    """What a judge said of one step: its valid votes (each +1 or -1) and how many answers were invalid."""

    valid: tuple[int, ...] = ()
    invalid: int = 0

    def __post_init__(self) -> None:
        if not set(self.valid) <= {-1, 1} or self.invalid < 0:
            raise ValueError(f"votes {self.valid} with {self.invalid} invalid: a vote is +1 or -1")


@dataclass(frozen=True)
class Judged:
    """One step as a judge sees it.

    before, after: the screens the action was done on and led to (the same one after a Finish). text: what the policy
    wrote. ended: whether the environment or a Finish ended the episode with this step; success: then, whether the task
    is solved (None when nobody could tell, or the episode goes on). The screens' PNG bytes are in their `png`.
    """

    step: int
    before: Observation
    after: Observation
    action: Action
    thought: str
    text: str
    ended: bool = False
    success: bool | None = None


class EpisodeJudge(Protocol):
    """A judge at work on one episode."""

    async def step(self, done: Judged) -> Awaitable[Votes]:
        """Look at a step that was just done. What is returned is awaited when the episode has ended; it must not touch
        the environment. Steps come in order; a step that did nothing (unreadable, unsupported) is not shown. Raises
        InfraError when the environment cannot be looked at."""
        ...


class Judge(Protocol):
    """Judges episodes, many at a time."""

    async def start(self, task: TaskSpec, seen: Observation, env: Env, seed: int) -> EpisodeJudge:
        """Begin with the first screen of an episode. seed: for the judge's own sampling, from (run, policy version,
        task, sibling, attempt)."""
        ...
