"""Finished episodes as recordings: our own successes become the recorded trajectories of semi-online RL.

Guarantees: only successes whose every action could be read; a recording holds the frames the policy saw, by digest, and
its thoughts; what is left out is counted by reason, never in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from guiderail.actions.wire import action_from_json
from guiderail.rollout.types import Episode
from guiderail.tasks.recorded import Expected, RecordedStep, Recording, box

Size = Callable[[str], tuple[int, int]]


def recordings(episodes: Iterable[Episode], size: Size) -> tuple[list[Recording], dict[str, int]]:
    """(recordings, left out by reason) of a store's episodes; size: frame digest -> (width, height) in pixels."""
    kept: list[Recording] = []
    left: Counter[str] = Counter()
    for e in episodes:
        if e.outcome.kind != "success":
            left[e.outcome.kind] += 1
        elif not e.steps or any(s.parse_error or not s.action for s in e.steps):
            left["a step without an action"] += 1
        else:
            steps = [_step(s.frame, size, action_from_json(s.action), s.thought) for s in e.steps]
            kept.append(Recording(e.id, e.instruction, tuple(steps)))
    return kept, dict(sorted(left.items()))


def demo_recordings(lines: Iterable[Mapping[str, Any]], size: Size) -> list[Recording]:
    """Recordings of the lines of demos.jsonl (see `stages.demos`), the scripted experts' successes."""
    found = []
    for line in lines:
        task = line["task"]
        steps = [
            _step(s["frame"], size, action_from_json(s["action"]), s["thought"], s.get("boxes", ()))
            for s in line["steps"]
        ]
        name = "/".join(str(task[k]) for k in ("suite", "template", "seed", "wording"))
        found.append(Recording(name, line["instruction"], tuple(steps)))
    return found


def _step(frame: str, size: Size, action: Any, thought: str, boxes: Iterable[Sequence[float]] = ()) -> RecordedStep:
    width, height = size(frame)
    corners = tuple(box((b[0], b[1], b[2], b[3])) for b in boxes)
    return RecordedStep(frame, width, height, Expected(action, corners), thought=thought)
