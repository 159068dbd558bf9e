"""AndroidControl-style JSONL as recordings: the three dialects of UI-S1's files, checked, with a report of what lacks.

    eval     check_options beside each action_content, step_instruction, episode_id
    train    a flat bbox inside action_content, nothing else
    thought  action_description, thought, sometimes motivation

Guarantees: a row is loaded whole or refused by file and line; an unknown key, action or argument is an error, never
dropped; whether swipe coordinates are the finger's or follow the scroll is told by the file's own directions or by the
caller, never guessed. Coordinates are pixels of the screenshot; the files do not say its size, so it is read from the
picture where there is one and else assumed, widened to hold every point, and counted as such.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from guiderail.errors import InputError
from guiderail.tasks.android_actions import ARGUMENTS, action, boxes, direction, fraction
from guiderail.tasks.recorded import OPPOSITE, Expected, RecordedStep, Recording, gesture

Swipes = Literal["gesture", "scroll"]
SizeOf = Callable[[str], "tuple[int, int] | None"]
ROW = {"goal", "is_successful", "steps", "episode_id"}
STEP = {"action_content", "screenshot", "step_instruction", "check_options", "action_description", "thought"}
STEP |= {"motivation", "annotation"}


@dataclass
class Report:
    """What a file holds and lacks. dialects, actions: rows, steps by name. lacks: steps (or rows) without something
    that another dialect has, or where something was assumed. swipes: the convention of its coordinates ("" without
    swipes)."""

    rows: int = 0
    steps: int = 0
    dialects: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    lacks: Counter[str] = field(default_factory=Counter)
    swipes: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        counts = {k: dict(sorted(getattr(self, k).items())) for k in ("dialects", "actions", "lacks")}
        return {"rows": self.rows, "steps": self.steps, **counts, "swipes": self.swipes}


def load(
    path: str | Path,
    *,
    swipes: Swipes | None = None,
    screen: tuple[int, int] = (1080, 2400),
    size_of: SizeOf | None = None,
) -> tuple[list[Recording], Report]:
    """Recordings of a file and the report on it.

    swipes: what swipe coordinates are; needed when the file gives no directions, checked when it does. screen: width
    and height in pixels assumed for a screenshot that `size_of` (path -> size or None) does not know.
    Raises InputError naming file and line on anything that is not understood, and on ids that occur twice.
    """
    report, rows = Report(), []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append((number, _checked(json.loads(line))))
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(f"{path}, line {number}: {e}") from None
    convention = report.swipes = _convention(path, [r for _, r in rows], swipes)
    recordings = []
    for number, row in rows:
        try:
            recordings.append(_recording(row, convention, screen, size_of, report))
        except ValueError as e:
            raise InputError(f"{path}, line {number}: {e}") from None
    twice = [k for k, n in Counter(r.id for r in recordings).items() if n > 1]
    if twice:
        raise InputError(f"{path}: episode {', '.join(twice[:5])} occurs twice; results could not be told apart")
    return recordings, report


def _checked(row: Any) -> Mapping[str, Any]:
    """The row, if every key in it is known and what must be there is. ValueError."""
    if not isinstance(row, dict):
        raise ValueError("a row is a JSON object")
    _keys("row", row, {"goal", "steps"}, ROW)
    if not isinstance(row["goal"], str) or not row["goal"].strip() or not row["steps"]:
        raise ValueError("a row needs a goal and steps")
    for k, step in enumerate(row["steps"]):
        _keys(f"step {k}", step, {"action_content", "screenshot"}, STEP)
        _action_keys(f"step {k}", step["action_content"])
        if step.get("annotation", "GOOD") not in ("GOOD", "NEUTRAL", "HARMFUL"):
            raise ValueError(f"step {k}: annotation {step['annotation']!r} is none of GOOD, NEUTRAL, HARMFUL")
        check = step.get("check_options")
        if check is not None:
            _keys(f"step {k}: check_options", check, {"action"}, {*check})
            unknown = set(check) - set(step["action_content"]) - {"action", "candidate_bbox", "direction"}
            differ = [a for a in check if a in step["action_content"] and check[a] != step["action_content"][a]]
            if unknown or differ:
                raise ValueError(f"step {k}: check_options and action_content disagree on {sorted(unknown) + differ}")
    return row


def _keys(what: str, found: Mapping[str, Any], needed: set[str], known: set[str]) -> None:
    lacks, unknown = sorted(needed - set(found)), sorted(set(found) - known - needed)
    if lacks or unknown:
        raise ValueError(f"{what}: lacks {lacks}, has unknown {unknown}")


def _action_keys(what: str, action: Mapping[str, Any]) -> None:
    if action.get("action") not in ARGUMENTS:
        raise ValueError(f"{what}: unknown action {action.get('action')!r}")
    needed, may = ARGUMENTS[action["action"]]
    _keys(f"{what}: {action['action']}", action, {"action"} | needed, may)


def _convention(path: str | Path, rows: list[Mapping[str, Any]], told: Swipes | None) -> str:
    """What the file's swipe coordinates are, from its own vertical directions and `told`."""
    seen: Counter[str] = Counter()
    for step in (s for r in rows for s in r["steps"] if s["action_content"]["action"] == "swipe"):
        a = step["action_content"]
        (x, y), (x2, y2) = a["coordinate"], a["coordinate2"]
        finger = gesture(x, y, x2, y2, 1, 1)
        said = step.get("check_options", {}).get("direction", a.get("direction"))
        if said is None:
            seen["unsaid"] += 1
        elif finger in ("up", "down") and said in ("up", "down"):
            seen["gesture" if OPPOSITE[finger] == said else "scroll"] += 1
        elif finger != said:  # sideways both names agree in the files we know
            raise InputError(f"{path}: {step['screenshot']}: a swipe {finger} is said to be {said}")
    if seen["gesture"] and seen["scroll"]:
        raise InputError(f"{path}: {seen['gesture']} vertical swipes are gestures, {seen['scroll']} follow the scroll")
    found = "gesture" if seen["gesture"] else "scroll" if seen["scroll"] else ""
    if told and found and told != found:
        raise InputError(f"{path}: swipes = {told!r}, but the file's own directions say {found!r}")
    if seen["unsaid"] and not (told or found):
        raise InputError(
            f"{path}: {seen['unsaid']} swipes without a direction; say whether their coordinates are the finger's "
            "(swipes='gesture') or follow the scroll (swipes='scroll')"
        )
    return (told or found) if seen else ""


def _recording(
    row: Mapping[str, Any], convention: str, screen: tuple[int, int], size_of: SizeOf | None, report: Report
) -> Recording:
    steps = [_step(s, convention, screen, size_of, report) for s in row["steps"]]
    report.rows += 1
    report.steps += len(steps)
    report.dialects[dialect(row)] += 1
    stem = Path(row["steps"][0]["screenshot"]).stem
    if "episode_id" not in row:
        report.lacks["episode_id (taken from the screenshot's name)"] += 1
    if not row.get("is_successful", False):
        report.lacks["success of the recorded trajectory"] += 1
    return Recording(str(row.get("episode_id", stem.rpartition("_")[0] or stem)), row["goal"], tuple(steps))


def dialect(row: Mapping[str, Any]) -> str:
    """Name of a row's dialect: that of its steps."""
    keys = {k for s in row["steps"] for k in s}
    if "check_options" in keys:
        return "eval"
    return "thought" if keys & {"thought", "action_description", "motivation"} else "train"


def _step(
    step: Mapping[str, Any], convention: str, screen: tuple[int, int], size_of: SizeOf | None, report: Report
) -> RecordedStep:
    a, check = step["action_content"], step.get("check_options", {})
    found = boxes(check.get("candidate_bbox", a.get("bbox")))
    known = size_of(step["screenshot"]) if size_of else None
    points = [p for k in ("coordinate", "coordinate2") if k in a for p in [a[k]]]
    width, height = known or screen
    if known is None:
        report.lacks["screen size (assumed)"] += 1
        if points and (max(p[0] for p in points) > width or max(p[1] for p in points) > height):
            report.lacks["screen size (assumed too small, widened)"] += 1
            corners = [*points, *[b[:2] for b in found], *[b[2:] for b in found]]
            width = max(width, int(max(c[0] for c in corners)) + 1)
            height = max(height, int(max(c[1] for c in corners)) + 1)
    typed = action(a, width, height, convention)
    side = direction(check.get("direction", a.get("direction")))
    report.actions[a["action"]] += 1
    for name in ("step_instruction", "check_options", "thought"):
        report.lacks[name] += not step.get(name)
    if a["action"] in ("click", "long_press"):
        report.lacks["box of a click"] += not found
    if a["action"] == "swipe":
        report.lacks["direction of a swipe"] += side is None
    if step.get("annotation", "GOOD") != "GOOD":
        report.lacks[f"a good expert step (annotation {step['annotation']})"] += 1
    return RecordedStep(
        frame=step["screenshot"],
        width=width,
        height=height,
        expected=Expected(typed, tuple(fraction(b, width, height) for b in found), side),
        instruction=step.get("step_instruction") or "",
        thought=step.get("thought") or step.get("motivation") or "",
        raw=step,
    )
