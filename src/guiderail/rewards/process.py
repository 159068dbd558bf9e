r"""What a judge of single steps is: it sees one step and gives votes of +1 or -1.

Guarantees: a vote is read strictly (`read_vote`): the last box of the answer decides, it must hold a bare +1 or -1, and
anything else is invalid and counted, never a 0 or a guess; a step's score is the mean of its valid votes, nan without
one. Which rubric a step falls under follows from its action alone. Asks no model: see `endpoint_judge` and `prm_judge`
for the engines, `rubrics` for the words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from guiderail.actions.types import Action, Finish, Wait

StepKind = Literal["act", "wait", "terminate"]
_BOX = re.compile(r"\\boxed\s*\{\s*([+-]?1)\s*\}")


@dataclass(frozen=True)
class StepContext:
    """One executed step as a judge sees it.

    history: the agent's earlier steps in its own words, oldest first (the thought, or the action where there was none).
    before, after: sha256 of the frame the policy saw and of the one it led to (the same when the episode ended without
    another look). action: what the model wrote, verbatim. key: names the step, for seeds and messages.
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


@dataclass(frozen=True)
class Votes:
    """The valid votes (+1 or -1 each) on a step, and how many answers could not be read."""

    valid: tuple[int, ...] = ()
    invalid: int = 0

    def __post_init__(self) -> None:
        if any(v not in (-1, 1) for v in self.valid):
            raise ValueError(f"votes {self.valid}: each must be +1 or -1; what cannot be read is counted as invalid")

    @property
    def mean(self) -> float:
        """Mean of the valid votes in [-1, 1]; nan without one."""
        return sum(self.valid) / len(self.valid) if self.valid else float("nan")


class Judge(Protocol):
    """Judges steps; asked for many steps at once, while their episodes go on."""

    async def votes(self, step: StepContext) -> Votes:
        """The votes on `step`. An engine that cannot answer at all raises; it never makes a vote up."""
        ...


def kind_of(action: Action) -> StepKind:
    """The rubric that an action is judged by. An unchanged screen says nothing against waiting or finishing."""
    if isinstance(action, Finish):
        return "terminate"
    return "wait" if isinstance(action, Wait) else "act"


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
