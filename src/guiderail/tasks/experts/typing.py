"""Experts of pages with text fields: click a textbox, type, and in the end press the page's button.

One rule serves them all (`fill`): the fields are filled in order; a field is clicked before it is typed into, and
clicked again when something came between.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from guiderail.actions.types import Action
from guiderail.tasks.experts.choosing import submit
from guiderail.tasks.experts.moves import click_text, click_textbox, clicked, type_text, typed
from guiderail.tasks.experts.scene import Decision, Facts, Policy, Scene

OPERATIONS = {"+": operator.add, "-": operator.sub, "x": operator.mul}


def fill(scene: Scene, texts: Sequence[str], history: Sequence[Action]) -> Decision | None:
    """Type texts[i] into the i-th textbox from the top, then press the button."""
    done = typed(history)
    if done >= len(texts):
        return submit(scene)
    boxes = scene.textboxes()
    if len(boxes) < len(texts):
        return None
    box = boxes[done]
    return type_text(texts[done]) if clicked(box, history[-1:]) else click_textbox(scene, box)


def fields(*names: str) -> Policy:
    """Fill the textboxes with the instruction's facts `names`, in order."""

    def policy(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
        return fill(scene, [facts[n] for n in names], history)

    return policy


def cased(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Type facts["text"] in all facts["case"] (upper or lower) case letters."""
    text = facts["text"].upper() if facts["case"] == "upper" else facts["text"].lower()
    return fill(scene, [text], history)


def arithmetic(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Type the answer of the problem shown, such as 3 x 9 =."""
    left, op, right = scene.find(id="math-problem")[0].text.replace("=", "").split()
    return fill(scene, [str(OPERATIONS[op](int(left), int(right)))], history)


def lookup(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Type the value that stands beside facts["key"] in the table."""
    cells = [n.text.strip() for n in scene.find("td")]
    table = dict(zip(cells[::2], cells[1::2], strict=True))
    return fill(scene, [table[facts["key"]]], history)


def login_with_popup(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Log in; a popup that comes up on the way is cancelled, and the field it interrupted clicked again."""
    cancel = scene.find("button", id="popup-cancel")
    return click_text(scene, cancel[0]) if cancel else fill(scene, [facts["user"], facts["password"]], history)
