"""What a format could reach on recordings at best: some have no form for actions that an expert took.

Guarantees: a step counts as sayable exactly when some answer in the format, read back as an answer is, scores as the
expert's there; so a format's gap is told beside its score, never counted as the policy's failure in silence. Asks no
policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from guiderail.actions.codec import Codec, NotExpressible
from guiderail.actions.types import Action, Click, Open, Parsed
from guiderail.rewards.match import RULES, Rules, match
from guiderail.tasks.recorded import RecordedStep, Recording


def sayable(step: RecordedStep, codec: Codec, rules: Rules = RULES) -> bool:
    """Whether `codec` can say the expert's action, or a click into the icon that counts as the same."""
    tries: list[Action] = [step.expected.action]
    if isinstance(tries[0], Open):
        tries += [Click((x1 + x2) / 2, (y1 + y2) / 2) for x1, y1, x2, y2 in step.expected.boxes]
    here = codec.at(step.width, step.height)
    for action in tries:
        try:
            said = here.parse(here.render(action))
        except NotExpressible:
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
