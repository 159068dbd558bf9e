"""The environment contract: observations in, actions out, and how an episode can end.

Guarantees: an observation carries the frame's sha256 and, when fresh, its PNG bytes; outcomes are typed so that
an infrastructure or judge fault can never be mistaken for a failure of the agent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from guiderail.actions.types import Action
from guiderail.errors import Explained
from guiderail.tasks.types import TaskSpec

OutcomeKind = Literal["success", "failure", "infra_error", "judge_error"]
Cause = Literal[
    "env_done",  # the environment ended the episode (page reported success or failure)
    "agent_finish",  # Finish(success)
    "agent_fail",  # Finish(failure), issued by the model
    "step_limit",
    "parse_failure",
    "crash",  # page, browser or VM died
    "timeout",  # a call into the environment did not come back in time
    "lease_lost",
    "judge",  # the judge raised
]


@dataclass(frozen=True)
class Observation:
    """What the policy sees before step `step`: a frame of `width` x `height` pixels and the instruction."""

    frame: str  # sha256 hex digest of the PNG bytes
    width: int
    height: int
    instruction: str
    step: int
    png: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True)
class StepResult:
    """Result of reset (action None) or step: the screen AFTER the action, and whether the environment ended."""

    observation: Observation
    done: bool
    raw_reward: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How an episode ended. `reward` is None exactly when kind is infra_error or judge_error."""

    kind: OutcomeKind
    cause: Cause
    reward: float | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        measured = self.kind in ("success", "failure")
        if measured != (self.reward is not None):
            raise ValueError(f"outcome {self.kind} with reward {self.reward}: only success and failure carry one")


class InfraError(Explained, RuntimeError):
    """The environment failed, not the agent. `cause` is one of crash, timeout, lease_lost."""

    def __init__(self, message: str, cause: Cause = "crash") -> None:
        super().__init__(message)
        self.cause: Cause = cause


class UsedUp(ValueError):
    """The machine has had its episode and cannot make itself anew; nothing was done. Another lease has a fresh one.

    `code` is its class on the pool's wire.
    """

    code = "used_up"


class JudgeError(Explained, RuntimeError):
    """The judge could not judge: there is no reward, and it is no fault of the agent."""


class Env(Protocol):
    """One screen that can be worked. All methods are coroutines; any may raise InfraError."""

    async def reset(self, task: TaskSpec) -> StepResult:
        """Start `task`; returns its first observation (step 0)."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Do `action` once; returns the screen after it."""
        ...

    async def evaluate(self) -> float:
        """Raw reward of the current state (the judge), e.g. in [-1, 1] for MiniWoB++. Raises JudgeError."""
        ...

    async def oracle(self) -> list[dict[str, Any]]:
        """DOM facts for scripted experts (never shown to the agent)."""
        ...

    async def close(self) -> None:
        """Give everything back; idempotent."""
        ...


@runtime_checkable
class Reports(Protocol):
    """An `Env` that can tell what an episode changed beside what it was asked for."""

    async def side_effects(self) -> list[str] | None:
        """Lines "made x", "changed x", "removed x" of the state now; None: nobody looked. Raises InfraError."""
        ...


TASK_S = 60.0
"""Most seconds that the setup of a task, or its judge, may take beyond a call."""


@runtime_checkable
class Unhurried(Protocol):
    """An `Env` with tasks whose setup and judge may take `task_s` (at most TASK_S) longer than a call; it bounds them
    itself."""

    task_s: float


@runtime_checkable
class Observes(Protocol):
    """An `Env` whose screen changes by itself, so that it can be looked at without an action."""

    async def observe(self) -> StepResult:
        """The screen now; the step count stays."""
        ...
