"""What a format could reach on recordings at best: some have no form for actions that an expert took.

Guarantees: a step counts as sayable exactly when some answer in the format, read back as an answer is, scores as the
expert's there; so a format's gap is told beside its score, never counted as the policy's failure in silence. Asks no
policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from guiderail.actions.codec import Codec
from guiderail.actions.types import Action, Click, Drag, LongPress, Open, Parsed, Scroll, Wait
from guiderail.rewards.match import RULES, Rules, match
from guiderail.tasks.recorded import RecordedStep, Recording, scroll_direction

WHEEL: dict[str, tuple[int, int]] = {"up": (0, -5), "down": (0, 5), "left": (-5, 0), "right": (5, 0)}


def answers(step: RecordedStep) -> list[Action]:
    """The expert's action and others that may count as the same: a click into the icon of an app, the wheel for a
    swipe, the usual duration."""
    action = step.expected.action
    found: list[Action] = [action]
    if isinstance(action, Open):
        found += [Click(min(1.0, (a + c) / 2), min(1.0, (b + d) / 2)) for a, b, c, d in step.expected.boxes]
    elif isinstance(action, LongPress):
        found.append(LongPress(action.x, action.y, 1.0))
    elif isinstance(action, Wait):
        found.append(Wait(1.0))
    elif isinstance(action, Drag):
        side = step.expected.direction or scroll_direction(action, step.width, step.height)
        found += [Scroll(0.5, 0.5, *WHEEL[side])] if side else []
    return found


def sayable(step: RecordedStep, codec: Codec, rules: Rules = RULES) -> bool:
    """Whether `codec` can say something that scores as the expert's action does."""
    here = codec.at(step.width, step.height)
    for action in answers(step):
        try:
            said = here.parse(here.render(action))
        except ValueError:  # no form for it, or a point of the file that is off the screen
            continue
        if isinstance(said, Parsed) and match(said.action, step.expected, step.width, step.height, rules).exact:
            return True
    return False


def ceiling(recordings: Sequence[Recording], can: Callable[[RecordedStep], bool]) -> dict[str, Any]:
    """What a policy reaches that is right wherever it `can` be.

    lost: steps it cannot get by kind of the expected action; steps, trajectories: how many there are. tsr, pg: share of
    trajectories done whole and mean share of leading steps (semi-online); right: share of steps (teacher-forced); None
    without recordings.
    """
    lost: Counter[str] = Counter()
    leading = []
    for r in recordings:
        hits = [can(s) for s in r.steps]
        lost.update(type(s.expected.action).__name__ for s, hit in zip(r.steps, hits, strict=True) if not hit)
        leading.append(hits.index(False) if False in hits else len(hits))
    n, steps = len(recordings), sum(len(r.steps) for r in recordings)
    shares = [s / len(r.steps) for s, r in zip(leading, recordings, strict=True)]
    return {
        "trajectories": n,
        "steps": steps,
        "lost": dict(sorted(lost.items())),
        "tsr": sum(s == 1 for s in shares) / n if n else None,
        "pg": sum(shares) / n if n else None,
        "right": 1 - sum(lost.values()) / steps if steps else None,
    }
