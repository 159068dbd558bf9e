"""UI-S1's two scorers as they are, faults included: for comparison with published numbers only.

Guarantees: the verdicts of its training reward and of its SOP evaluator on typed actions. They disagree with each other
and with the data: the empty text passes, the training scorer wants vertical swipes reversed, the evaluator takes any
swipe and sees no boxes. `rewards.match` is the one to use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guiderail.actions.types import Action, Answer, Click, Drag, Finish, Key, LongPress, Nav, Open, Type, Wait
from guiderail.rewards.match import Match
from guiderail.tasks.recorded import OPPOSITE, RecordedStep, gesture

DISTANCE, SCALE = 0.04, 1.2
NAMES: dict[type, str] = {
    Click: "click", LongPress: "long_press", Drag: "swipe", Type: "type", Answer: "answer", Key: "key",
    Nav: "system_button", Open: "open", Wait: "wait", Finish: "terminate",
}  # fmt: skip


def reference_train_match(predicted: Action | None, step: RecordedStep) -> Match:
    """The training scorer on `step.raw["action_content"]`, which is all its loader keeps (a box only from `bbox`)."""
    raw = step.raw["action_content"]
    kind, name = raw["action"], NAMES.get(type(predicted))
    if kind in ("type", "answer", "key"):
        return _verdict(name == "type", isinstance(predicted, Type) and _text(raw["text"], predicted.text))
    if name != kind:
        return Match(False, False)
    if isinstance(predicted, Click | LongPress):
        boxes = [raw["bbox"]] if raw.get("bbox") else []
        return _verdict(True, _point(predicted, raw["coordinate"], boxes, step))
    if isinstance(predicted, Drag):
        (x, y), (x2, y2) = raw["coordinate"], raw["coordinate2"]
        wanted = gesture(x, y, x2, y2, 1, 1) or "up"
        if wanted in ("up", "down"):
            wanted = OPPOSITE[wanted]
        return _verdict(True, (_finger(predicted, step) or "up") == wanted)
    return _verdict(True, _rest(predicted, raw))


def reference_sop_match(predicted: Action | None, step: RecordedStep) -> Match:
    """The SOP evaluator on `step.raw["action_content"]`, which overwrites the check (no boxes, no direction).

    Raises NotImplementedError for an expected terminate, answer or key, as it does; its progress is then 0.
    """
    raw = step.raw["action_content"]
    kind, name = raw["action"], NAMES.get(type(predicted))
    if kind in ("terminate", "answer", "key"):
        raise NotImplementedError(f"the reference's evaluator cannot score an expected {kind}")
    if name != kind:
        return Match(False, False)
    if isinstance(predicted, Click | LongPress):
        return _verdict(True, _point(predicted, raw["coordinate"], [], step))
    if isinstance(predicted, Type):
        return _verdict(True, _text(raw["text"], predicted.text))
    return _verdict(True, isinstance(predicted, Drag) or _rest(predicted, raw))


def _verdict(kind: bool, exact: bool) -> Match:
    return Match(kind, kind and exact)


def _rest(predicted: Action | None, raw: Mapping[str, Any]) -> bool:
    if isinstance(predicted, Open):
        return _text(raw["text"], predicted.app)
    if isinstance(predicted, Nav):
        return predicted.button == str(raw["button"]).lower()
    return isinstance(predicted, Wait | Finish)


def _text(a: str, b: str) -> bool:
    a, b = a.lower().strip(), b.lower().strip()
    return a in b or b in a


def _finger(action: Drag, step: RecordedStep) -> str | None:
    return gesture(action.x, action.y, action.x2, action.y2, step.width, step.height)


def _point(
    predicted: Click | LongPress, at: Sequence[float], boxes: Sequence[Sequence[float]], step: RecordedStep
) -> bool:
    w, h = step.width, step.height
    for x1, y1, x2, y2 in boxes:
        cx, cy, dx, dy = (x1 + x2) / 2 / w, (y1 + y2) / 2 / h, (x2 - x1) * SCALE / 2 / w, (y2 - y1) * SCALE / 2 / h
        if cx - dx <= predicted.x <= cx + dx and cy - dy <= predicted.y <= cy + dy:
            return True
    return bool(((predicted.x - at[0] / w) ** 2 + (predicted.y - at[1] / h) ** 2) ** 0.5 <= DISTANCE)
