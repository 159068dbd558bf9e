"""One matcher for reward, training and evaluation: does an action do what the expert's did?

Guarantees: the expert's own action always matches exactly; nothing matches an expected text but text (the empty one
only itself); a swipe the other way never matches; total: any action of the algebra gives a `Match`, None (nothing could
be read) one of no match. The rules that published numbers were made with are in `match_reference`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass

from guiderail.actions.types import (
    Action,
    Answer,
    Click,
    Drag,
    Finish,
    Key,
    LongPress,
    Move,
    Nav,
    Open,
    Scroll,
    Type,
    Wait,
)
from guiderail.tasks.recorded import Box, Expected, scroll_direction


@dataclass(frozen=True)
class Rules:
    """Tolerances. distance: of a point from the expert's, x by width and y by height. box_scale: boxes are widened
    about their centre. max_box: share of the screen above which a box names a container, not a target, and is not used.
    similarity: least edit similarity of texts; their digits must be equal. exact_text: texts must be equal to the
    letter."""

    distance: float = 0.04
    box_scale: float = 1.2
    max_box: float = 0.25
    similarity: float = 0.8
    exact_text: bool = False


@dataclass(frozen=True)
class Match:
    """type: the same kind of action. exact: it does the same. grounding: whether a click or long press hit the target,
    None when the expert's action is neither or the prediction has no such point. why: for a miss, one phrase."""

    type: bool
    exact: bool
    grounding: bool | None = None
    why: str = ""


RULES = Rules()
PAGES = Rules(distance=0.013, box_scale=1.0, max_box=1.0, exact_text=True)
"""For recordings of pages that judge exactly: a click on the recorded element, or within half of the grid that recorded
points are rounded to; texts to the letter."""
_NO = Match(False, False, None, "another kind of action")


def match(predicted: Action | None, expected: Expected, width: int, height: int, rules: Rules = RULES) -> Match:
    """Compare on a screen of `width` x `height` pixels.

    Click, LongPress: same kind, button and count, and inside the tightest box that holds the expert's point or within
    `rules.distance` of it. Move: the latter. Drag, Scroll: either may stand for a swipe; they must scroll to the same
    side. Type, Answer, Open: same text (see `same_text`); an `Open` is done as well by a click on one of its boxes.
    Key, Nav, Finish: equal. Wait: any duration.
    """
    if predicted is None:
        return Match(False, False, None, "nothing could be read")
    wanted = expected.action
    match wanted, predicted:
        case (Click() | LongPress(), Click() | LongPress()) if type(wanted) is type(predicted):
            hit = _hits(predicted.x, predicted.y, expected, wanted.x, wanted.y, rules)
            alike = not isinstance(wanted, Click) or _press(wanted) == _press(predicted)
            return _verdict(hit and alike, "beside the target" if alike else "another button or count", hit)
        case (Open(), Click()) if expected.boxes and _press(predicted) == ("left", 1):
            hit = any(_inside(predicted.x, predicted.y, b) for b in expected.boxes)
            return Match(True, True, None) if hit else _NO
        case (Drag() | Scroll(), Drag() | Scroll()):
            way = expected.direction or scroll_direction(wanted, width, height)
            return _verdict(way is not None and scroll_direction(predicted, width, height) == way, "another direction")
        case (Type(a), Type(b)) | (Answer(a), Answer(b)) | (Open(a), Open(b)):
            return _verdict(a == b if rules.exact_text else same_text(a, b, rules.similarity), "another text")
        case (Wait(), Wait()):
            return Match(True, True)
        case (Key(), Key()) | (Nav(), Nav()) | (Finish(), Finish()):
            return _verdict(wanted == predicted, "another key, button or status")
        case (Move(), Move()):
            hit = _near(predicted.x, predicted.y, wanted.x, wanted.y, rules.distance)
            return _verdict(hit, "beside the target")
    return _NO


def _verdict(exact: bool, why: str, grounding: bool | None = None) -> Match:
    return Match(True, exact, grounding, "" if exact else why)


def _press(action: Action) -> tuple[str, int] | None:
    return (action.button, action.count) if isinstance(action, Click) else None


def _near(x: float, y: float, x0: float, y0: float, distance: float) -> bool:
    # 1e-9: a point exactly at the distance is in, whatever the rounding of the fractions
    return math.hypot(x - x0, y - y0) <= distance + 1e-9


def _inside(x: float, y: float, b: Box) -> bool:
    x1, y1, x2, y2 = b
    return min(x1, x2) - 1e-9 <= x <= max(x1, x2) + 1e-9 and min(y1, y2) - 1e-9 <= y <= max(y1, y2) + 1e-9


def area(b: Box) -> float:
    """Share of the screen."""
    return abs(b[2] - b[0]) * abs(b[3] - b[1])


def scaled(b: Box, factor: float) -> Box:
    """The box widened about its centre, corners in order."""
    cx, cy, w, h = (b[0] + b[2]) / 2, (b[1] + b[3]) / 2, abs(b[2] - b[0]) * factor, abs(b[3] - b[1]) * factor
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def target(expected: Expected, x0: float, y0: float, rules: Rules) -> Box | None:
    """The smallest box that holds the expert's point, if it is no container."""
    around = [b for b in expected.boxes if _inside(x0, y0, b) and area(b) <= rules.max_box]
    return min(around, key=area) if around else None


def _hits(x: float, y: float, expected: Expected, x0: float, y0: float, rules: Rules) -> bool:
    b = target(expected, x0, y0, rules)
    return (b is not None and _inside(x, y, scaled(b, rules.box_scale))) or _near(x, y, x0, y0, rules.distance)


def plain(text: str) -> str:
    """Text for comparison: NFKC, case folded, white space collapsed, no end punctuation."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(" .!?,;:")


def same_text(expected: str, predicted: str, similarity: float = 0.8) -> bool:
    """Equal as `plain` text, or of at least this edit similarity with the same digits in the same order.

    similarity = 1 - Levenshtein distance / length of the longer; a typing slip passes, a wrong number or an empty text
    never does.
    """
    a, b = plain(expected), plain(predicted)
    if a == b:
        return True
    if not a or not b or re.findall(r"\d+", a) != re.findall(r"\d+", b):
        return False
    allowed = (1 - similarity) * max(len(a), len(b)) + 1e-9
    return abs(len(a) - len(b)) <= allowed and edit_distance(a, b) <= allowed


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]
