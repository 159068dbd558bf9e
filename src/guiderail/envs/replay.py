"""A recorded trajectory as an environment: the next recorded screen, as long as the policy does what the expert did.

Guarantees: the contract of `envs.types.Env`; the observation of step k is the recorded screen of step k, whatever the
policy did before; a miss goes on only while the patch budget lasts (`algorithms.patch`); the raw reward is 1 when every
step matched, a patched one does not count as matched. Frames are read when they are shown. Does not write the history:
`info` tells the caller what to put there.

info of a step: {"match": the verdict, "decision": accept | patch | stop, "expert": the recorded action, "thought": its
annotated thought, "patches": used so far}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from guiderail.actions.types import Action
from guiderail.algorithms.patch import PatchState
from guiderail.envs.types import InfraError, Observation, StepResult
from guiderail.tasks.recorded import RecordedStep, Recording
from guiderail.tasks.types import TaskSpec


class Verdict(Protocol):
    """What a matcher says."""

    @property
    def exact(self) -> bool:
        """Whether the action does what the expert's did."""
        ...


Matcher = Callable[[Action | None, RecordedStep], Verdict]
"""`rewards.match` with the tolerances of the run (None: an answer that nobody could read); handed in, since rewards
stand above environments."""


class ReplayEnv:
    """Plays `recordings` by `TaskSpec.id`.

    png: bytes of a recorded frame by its name; raises KeyError or OSError when it is not there. sha: its digest.
    patch_threshold: misses after which a rollout still goes on; 0 = none, -1 = any number.
    """

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        matcher: Matcher,
        png: Callable[[str], bytes],
        sha: Callable[[bytes], str],
        patch_threshold: int = 0,
    ) -> None:
        self._recordings, self._matcher, self._png, self._sha = recordings, matcher, png, sha
        self._start = PatchState(patch_threshold)
        self._recording: Recording | None = None

    async def reset(self, task: TaskSpec) -> StepResult:
        """Show the first screen. Raises ValueError on an unknown episode, InfraError on a missing frame."""
        if task.id not in self._recordings:
            raise ValueError(f"{task.id}: no such recording among {len(self._recordings)}")
        self._recording, self._at, self._ended = self._recordings[task.id], 0, False
        self._patches, self._matched = self._start, 0
        return StepResult(self._show(), False)

    async def step(self, action: Action) -> StepResult:
        """Compare `action` with the expert's, and show the next screen (the same one at the end)."""
        return await self._compare(action)

    async def miss(self) -> StepResult:
        """A step whose answer could not be read: it matches nothing."""
        return await self._compare(None)

    async def _compare(self, action: Action | None) -> StepResult:
        if self._recording is None or self._ended:
            raise ValueError("step before reset, or after the end of the trajectory")
        expert = self._recording.steps[self._at]
        found = self._matcher(action, expert)
        decision, self._patches = self._patches.after(found.exact)
        self._matched += found.exact
        self._ended = decision == "stop" or self._at + 1 == len(self._recording.steps)
        if not self._ended:
            self._at += 1
        info: dict[str, Any] = {"match": found, "decision": decision, "patches": self._patches.used}
        info |= {"expert": expert.expected.action, "thought": expert.thought}
        return StepResult(self._show(), self._ended, await self.evaluate(), info)

    async def evaluate(self) -> float:
        """1 when the trajectory ended with every step matched, else 0."""
        return float(self._recording is not None and self._ended and self._matched == len(self._recording.steps))

    async def oracle(self) -> list[dict[str, Any]]:
        """Nothing: recordings have no page to ask."""
        return []

    async def close(self) -> None:
        """Forget the trajectory."""
        self._recording = None

    def _show(self) -> Observation:
        assert self._recording is not None
        step = self._recording.steps[self._at]
        try:
            png = self._png(step.frame)
        except (KeyError, OSError) as e:
            raise InfraError(
                f"episode {self._recording.id}, step {self._at}: frame {step.frame} is missing ({e})"
            ) from e
        return Observation(self._sha(png), step.width, step.height, self._recording.goal, self._at, png)
