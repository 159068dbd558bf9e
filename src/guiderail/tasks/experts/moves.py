"""The moves experts are made of: an action together with its thought, in the fixed forms the tiny model is grounded in.

Guarantees: every thought is one of the forms listed in `THOUGHT_FORMS`; click points are the centre of the thing named
(of the printed words for text). Points are exact; rounding to a grid is `scene.snap`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from guiderail.actions.types import Action, Click, Type
from guiderail.tasks.experts.scene import Decision, Node, Scene, free_point, union

THOUGHT_FORMS = re.compile(
    r'click "[^\n]+"|click the textbox|click textbox [1-9]|click the (?:checkbox|radio) "[^\n]+"'
    r"|click the [a-z]+ (?:box|circle|square|triangle)|click the X|click \(-?\d+, -?\d+\)"
    r'|type "[^\n]*"|done'
)
MAX_WORDS = 2


def click_text(scene: Scene, node: Node) -> Decision | None:
    """Click the (first two) words printed in `node`, or a free spot of it when a later button hides them."""
    words = scene.words_of(node)[:MAX_WORDS]
    label = " ".join(w.text for w in words) or node.text.strip()
    aim = union(words).centre if words else node.centre
    point = free_point(node, aim, scene.covering(node))
    return None if point is None else (Click(*point), f'click "{label}"')


def click_centre(node: Node, thought: str) -> Decision:
    """Click the middle of `node`."""
    return Click(*node.centre), thought


def click_textbox(scene: Scene, node: Node) -> Decision:
    """Click a textbox, by its number from the top when there are several."""
    boxes = scene.textboxes()
    return click_centre(node, "click the textbox" if len(boxes) == 1 else f"click textbox {boxes.index(node) + 1}")


def type_text(text: str) -> Decision:
    """Type `text` into whatever has the focus."""
    return Type(text), f'type "{text}"'


def clicked(node: Node, history: Sequence[Action], margin: float = 0.013) -> int:
    """How often past clicks hit `node` (with `margin` for points rounded to the grid)."""
    return sum(isinstance(a, Click) and node.contains(a.x, a.y, margin) for a in history)


def typed(history: Sequence[Action]) -> int:
    """How many texts were typed so far."""
    return sum(isinstance(a, Type) for a in history)
