r"""What a judge of single steps is: it sees one step and gives votes of +1 or -1.

Guarantees: a vote is read strictly (`read_vote`): the last box of the answer decides, it must hold a bare +1 or -1, and
anything else is invalid and counted, never a 0 or a guess; a step's score is the mean of its valid votes, nan without
one. Which rubric a step falls under follows from its action alone. Asks no model: see `endpoint_judge` and `prm_judge`
for the engines, `rubrics` for the words.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from guiderail.actions.types import Action, Click, Drag, Finish, LongPress, Move, Scroll, Wait
from guiderail.envs.types import Env, Observation
from guiderail.rollout.judging import Judged, Votes
from guiderail.tasks.types import TaskSpec

StepKind = Literal["act", "wait", "terminate"]
_BOX = re.compile(r"\\boxed\s*\{\s*([+-]?1)\s*\}")


@dataclass(frozen=True)
class StepContext:
    """One executed step as a judge sees it.

    history: the agent's earlier steps in its own words, oldest first (the thought, or the action where there was none).
    before, after: sha256 of the frame the policy saw and of the one it led to (the same when the episode ended without
    another look). action: what the model wrote, verbatim. key: names the step, for seeds and messages. said: the step
    in the agent's own words, as history will have it. point: where it acted, as fractions of the screen; None when
    nowhere. ended: whether the episode ended with it.
    """

    instruction: str
    history: tuple[str, ...]
    before: str
    action: str
    after: str
    kind: StepKind
    width: int
    height: int
    key: str
    said: str = ""
    point: tuple[float, float] | None = None
    ended: bool = False


class StepJudge(Protocol):
    """Judges single steps from what can be seen; asked for many steps at once, while their episodes go on."""

    async def votes(self, step: StepContext) -> Votes:
        """The votes on `step`. An engine that cannot answer at all raises; it never makes a vote up."""
        ...


def kind_of(action: Action) -> StepKind:
    """The rubric that an action is judged by. An unchanged screen says nothing against waiting or finishing."""
    if isinstance(action, Finish):
        return "terminate"
    return "wait" if isinstance(action, Wait) else "act"


def point_of(action: Action) -> tuple[float, float] | None:
    """Where an action acts: its point, the end of a drag, None for one without a place."""
    if isinstance(action, Drag):
        return action.x2, action.y2
    return (action.x, action.y) if isinstance(action, Click | LongPress | Move | Scroll) else None


def read_vote(text: str) -> int | None:
    r"""+1 or -1 from an answer, None when it is invalid.

    The last \boxed{...} decides, so one that the reasoning mentions does no harm; `1`, `+1` and `-1` are read, blanks
    around them too. A last box that is cut, empty, nested or holds anything else makes the answer invalid, whatever
    stands before it.
    """
    start = text.rfind("\\boxed")
    found = _BOX.match(text, start) if start >= 0 else None
    return int(found[1]) if found else None


def tally(answers: list[str]) -> Votes:
    """The votes in a list of answers."""
    read = [read_vote(a) for a in answers]
    return Votes(tuple(v for v in read if v is not None), sum(v is None for v in read))


class FrameJudge:
    """A `StepJudge` at the seam of the rollout: it builds each step's context and asks at once, while the episode goes
    on. History is the agent's own thoughts, or its actions where there were none."""

    def __init__(self, judge: StepJudge) -> None:
        self.judge = judge

    async def start(self, task: TaskSpec, seen: Observation, env: Env, seed: int) -> FrameWatch:
        """Begin an episode; the environment is not looked at."""
        return FrameWatch(self.judge, seen.instruction, f"{task.id}#{seed}")


@dataclass
class FrameWatch:
    """One episode under a `FrameJudge`; `key` names it."""

    judge: StepJudge
    instruction: str
    key: str
    history: list[str] = field(default_factory=list)

    async def step(self, done: Judged) -> Awaitable[Votes]:
        """Ask for the votes on a step; they are awaited when the episode has ended."""
        context = context_of(done, self.instruction, tuple(self.history), self.key)
        self.history.append(said(done))
        return asyncio.create_task(self.judge.votes(context))  # type: ignore[arg-type]


def said(done: Judged) -> str:
    """A step in the agent's own words, on one line."""
    return " ".join((done.thought or done.text).split())


def context_of(done: Judged, instruction: str, history: tuple[str, ...], key: str) -> StepContext:
    """A step of a rollout as a judge sees it; its key is the episode's and the number of the step."""
    return StepContext(
        instruction=instruction,
        history=history,
        before=done.before.frame,
        action=done.text,
        after=done.after.frame,
        kind=kind_of(done.action),
        width=done.before.width,
        height=done.before.height,
        key=f"{key}/{done.step}",
        said=said(done),
        point=point_of(done.action),
        ended=done.ended,
    )


def mean_vote(votes: Votes) -> float:
    """Mean of the valid votes in [-1, 1]; nan without one."""
    return sum(votes.valid) / len(votes.valid) if votes.valid else float("nan")
