"""The state judge: did a step bring the task nearer to its end, as the scripted expert sees the page?

Guarantees: a step that solved the task is +1 and one that ended the episode without is -1, whatever the expert says; a
pure function of the page's facts before and after, the instruction and the actions that were progress so far. It labels
steps for a process reward model and judges rollouts by itself (`rl.judge: progress`).
Does not see pixels. It is as good as its expert: a detour the expert would not take is no progress, and a text once
typed wrong is only noticed when the page says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guiderail.actions.types import Action, Click
from guiderail.envs.types import Env, Observation
from guiderail.rollout.judging import Judged, Votes
from guiderail.tasks.experts.scene import Scene
from guiderail.tasks.suites import get_suite
from guiderail.tasks.template import Template
from guiderail.tasks.types import TaskSpec

MARGIN = 0.013
"""How far beside an element a click still counts as on it: half of the grid of demonstrated points."""
LONGEST = 20
"""Steps after which a plan is cut."""

Facts = Sequence[Mapping[str, Any]]
"""What `Env.oracle()` gives."""


def plan(template: Template, facts: Facts, instruction: str, history: Sequence[Action]) -> list[Action]:
    """The expert's remaining actions on a page that stood still, at most `LONGEST`.

    It is asked again and again, its own answers appended to `history`, until it has nothing left or repeats itself.
    """
    done, found = list(history), list[Action]()
    while len(found) < LONGEST:
        decision = template.expert(facts, instruction, len(done), done)
        if decision is None or (found and decision[0] == found[-1]):
            break
        found.append(decision[0])
        done.append(decision[0])
    return found


def does(action: Action, wanted: Action, scene: Scene) -> bool:
    """Whether `action` is the expert's `wanted` on this page: a click on the same element, else the same action."""
    if not (isinstance(action, Click) and isinstance(wanted, Click)):
        return action == wanted
    if (action.button, action.count) != (wanted.button, wanted.count):
        return False
    return scene.element(wanted.x, wanted.y).contains(action.x, action.y, MARGIN)


def progress(
    template: Template, before: Facts, after: Facts, instruction: str, history: Sequence[Action], action: Action
) -> tuple[bool, bool]:
    """(progress, whether the action belongs to the plan's history from now on) of a step that did not end the episode.

    Progress: the expert's remaining plan got shorter, by what the page now shows alone, or because the action did one
    of its steps; the next step counts also when what it reveals makes the rest longer. history: the actions that were
    such steps so far. A plan that is empty while the page goes on shows that its last step failed.
    """
    old = plan(template, before, instruction, history)
    now = plan(template, after, instruction, history)
    index = next((i for i, wanted in enumerate(old) if does(action, wanted, Scene.of(before))), None)
    if index is not None:
        rest = plan(template, after, instruction, [*history, action])
        left = old[:index] + old[index + 1 :]
        if rest and (index == 0 or _same(rest, left)):
            return True, True
    return 0 < len(now) < len(old), False


def _same(a: Sequence[Action], b: Sequence[Action]) -> bool:
    """Equal plans, up to the rounding of points."""
    return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))


def _alike(a: Action, b: Action) -> bool:
    if isinstance(a, Click) and isinstance(b, Click):
        return abs(a.x - b.x) <= MARGIN and abs(a.y - b.y) <= MARGIN
    return a == b


@dataclass
class _Watch:
    """One episode of the state judge."""

    template: Template
    instruction: str
    env: Env
    before: Facts
    history: list[Action] = field(default_factory=list)

    async def step(self, done: Judged) -> Awaitable[Votes]:
        """+1 or -1 from the page's facts; asks the environment for them unless the episode has ended."""
        if done.ended:
            return _Now(Votes() if done.success is None else Votes((1 if done.success else -1,)))
        after = await self.env.oracle()
        good, planned = progress(self.template, self.before, after, self.instruction, self.history, done.action)
        if planned:
            self.history.append(done.action)
        self.before = after
        return _Now(Votes((1 if good else -1,)))


@dataclass(frozen=True, eq=False)
class _Now(Awaitable[Votes]):
    """Votes that are there already; unlike a coroutine it may be left unasked, as when a stage is stopped."""

    votes: Votes

    def __await__(self) -> Generator[Any, None, Votes]:
        yield from ()
        return self.votes


class ProgressJudge:
    """The state judge as a `rollout.judging.Judge`: one vote a step. Needs an environment with an oracle and a suite
    with scripted experts. Raises KeyError for a template without one."""

    async def start(self, task: TaskSpec, seen: Observation, env: Env, seed: int) -> _Watch:
        """Ask for the facts of the first screen. `seed` is not used: the verdict is no sample."""
        return _Watch(get_suite(task.suite).templates[task.template], seen.instruction, env, await env.oracle())
