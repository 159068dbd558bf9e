"""The patch module of semi-online RL: what happens at a step that misses the expert, and what the history then says.

Guarantees: a rollout goes on after a miss at most `threshold` times (-1: always, 0: never); the thought of a patch
comes from where its kind says, and a missing one is an error, never an empty thought in silence; an on-policy thought
is asked for only when a patch needs it. Pure but for the `think` it is given. Does not know actions, texts or models:
an expert turn is whatever the caller puts into its history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

A = TypeVar("A")
Kind = Literal["thought_free", "on_policy", "off_policy"]
Decision = Literal["accept", "patch", "stop"]
UNLIMITED = -1


@dataclass(frozen=True)
class PatchState:
    """Where a rollout stands: patches used of `threshold`, and whether it has ended at a miss."""

    threshold: int
    used: int = 0
    stopped: bool = False

    def __post_init__(self) -> None:
        if self.threshold < UNLIMITED:
            raise ValueError(f"patch threshold {self.threshold}: must be -1 (unlimited) or 0 and more")

    def after(self, matched: bool) -> tuple[Decision, PatchState]:
        """What to do after a step, and the state then. The missed step is trained on either way.

        accept: its own turn stays in the history. patch: the expert's replaces it there, and the rollout goes on as if
        it had matched. stop: the rollout ends with this step. Raises ValueError when it has ended already.
        """
        if self.stopped:
            raise ValueError("the rollout ended at a miss: no step follows")
        if matched:
            return "accept", self
        if self.threshold == UNLIMITED or self.used < self.threshold:
            return "patch", replace(self, used=self.used + 1)
        return "stop", replace(self, stopped=True)


@dataclass(frozen=True)
class Turn(Generic[A]):
    """A turn of the history: the action and the thought before it; "" = none (the format then leaves it out)."""

    thought: str
    action: A


def patched_turn(
    kind: Kind, expert: A, *, annotated: str | None = None, think: Callable[[], str] | None = None
) -> Turn[A]:
    """The expert's turn in place of a missed one.

        thought_free:  (a*, no thought)
        off_policy:    (a*, a thought that another model wrote for it)         `annotated`
        on_policy:     (a*, a thought that the policy writes, told a*)         `think()`

    Source: UI-S1 (arXiv 2509.11543) table 1. Raises ValueError when the thought that `kind` needs is missing or blank.
    """
    if kind == "thought_free":
        return Turn("", expert)
    if kind == "off_policy":
        thought, lacks = annotated, "an annotated thought (run the annotation, or use thought_free)"
    elif kind == "on_policy":
        thought, lacks = think() if think else None, "a thought of the policy (pass think)"
    else:
        raise ValueError(f"patch {kind!r}: must be thought_free, on_policy or off_policy")
    if thought is None or not thought.strip():
        raise ValueError(f"patch {kind} needs {lacks}; got {thought!r}")
    return Turn(thought, expert)
