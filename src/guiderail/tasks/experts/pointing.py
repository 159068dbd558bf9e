"""Experts of the pages one click solves: find the named thing, click it.

Where several elements fit, the first in reading order is taken, so that demonstrations are canonical.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guiderail.actions.types import Action
from guiderail.tasks.experts.moves import click_centre, click_text, click_textbox
from guiderail.tasks.experts.scene import Decision, Facts, Node, Policy, Scene, reading_order

ORDINALS = {"1st": 0, "2nd": 1, "3rd": 2}
SHAPES = {"circle": "circle", "rect": "square", "polygon": "triangle"}
FILLS = {
    "rgb(255, 0, 0)": "red",
    "rgb(0, 128, 0)": "green",
    "rgb(0, 0, 255)": "blue",
    "rgb(0, 255, 255)": "aqua",
    "rgb(0, 0, 0)": "black",
    "rgb(255, 0, 255)": "magenta",
    "rgb(255, 255, 0)": "yellow",
}
PAGE_NAMES = {"circle": "circle", "rect": "rectangle", "polygon": "triangle"}


def once(find: Callable[[Scene, Facts], Decision | None]) -> Policy:
    """A policy that does `find`'s click first and nothing afterwards."""

    def policy(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
        return None if history else find(scene, facts)

    return policy


def _first(nodes: Sequence[Node]) -> Node | None:
    ordered = reading_order(nodes)
    return ordered[0] if ordered else None


def button(scene: Scene, facts: Facts) -> Decision | None:
    """The button labelled facts["text"]."""
    node = _first(scene.find("button", text=facts["text"]))
    return click_text(scene, node) if node else None


def only_button(scene: Scene, facts: Facts) -> Decision | None:
    """The first button of the page."""
    node = _first(scene.find("button"))
    return click_text(scene, node) if node else None


def link(scene: Scene, facts: Facts) -> Decision | None:
    """The link labelled facts["text"]."""
    node = _first(scene.find(cls="alink", text=facts["text"]))
    return click_text(scene, node) if node else None


def tab(scene: Scene, facts: Facts) -> Decision | None:
    """The tab numbered facts["number"]."""
    node = _first(scene.find("a", text=f"Tab #{facts['number']}"))
    return click_text(scene, node) if node else None


def close(scene: Scene, facts: Facts) -> Decision | None:
    """The X of a dialog."""
    node = _first(scene.find("button", cls="ui-dialog-titlebar-close"))
    return click_centre(node, "click the X") if node else None


def dialog_button(scene: Scene, facts: Facts) -> Decision | None:
    """The dialog's button labelled facts["text"], where x is its X."""
    return close(scene, facts) if facts["text"] == "x" else button(scene, facts)


def textbox(scene: Scene, facts: Facts) -> Decision | None:
    """The textbox, or the one that facts["ordinal"] (1st, 2nd, 3rd) counts from the top."""
    boxes = scene.textboxes()
    index = ORDINALS[facts.get("ordinal", "1st")]
    return click_textbox(scene, boxes[index]) if index < len(boxes) else None


def colour_box(scene: Scene, facts: Facts) -> Decision | None:
    """The box filled with facts["colour"]."""
    node = _first(scene.find("div", data_color=facts["colour"]))
    return click_centre(node, f"click the {facts['colour']} box") if node else None


def widget(scene: Scene, facts: Facts) -> Decision | None:
    """The first widget of kind facts["kind"]: radio, checkbox, text, textarea or button."""
    kind = facts["kind"]
    node = _first(scene.find(data_type=kind))
    if node is None:
        return None
    if kind == "button":
        return click_text(scene, node)
    if kind in ("text", "textarea"):
        return click_textbox(scene, node)
    return click_choice(scene, node, kind)


def click_choice(scene: Scene, box: Node, kind: str) -> Decision:
    """The small box (kind radio or checkbox) of a label."""
    label = next(n for n in scene.find("label") if n.contains(*box.centre))
    return click_centre(box, f'click the {kind} "{label.text.strip()}"')


def grid_point(scene: Scene, facts: Facts) -> Decision | None:
    """The dot at grid coordinate (facts["x"], facts["y"])."""
    node = _first(scene.find("circle", id=f"({facts['x']},{facts['y']})"))
    return click_centre(node, f"click ({facts['x']}, {facts['y']})") if node else None


def shape(scene: Scene, facts: Facts) -> Decision | None:
    """A drawn thing that fits facts["what"], e.g. "small red digit", "large item", "triangle", "9"."""
    parts = facts["what"].split()
    size = parts.pop(0) if parts[0] in ("small", "large") else None
    kind = parts.pop()
    colour = parts[0] if parts else None
    fits = [
        n
        for n in scene.find("text", "circle", "rect", "polygon")
        if size in (None, _size(n)) and colour in (None, _fill(n)) and kind in ("item", *_kinds(n))
    ]
    node = _first(fits)
    if node is None:
        return None
    return click_centre(
        node, f'click "{node.text}"' if node.tag == "text" else f"click the {_fill(node)} {SHAPES[node.tag]}"
    )


def figure_name(scene: Scene, facts: Facts) -> Decision | None:
    """The button that names the one figure drawn."""
    figure = _first(scene.find("text", "circle", "rect", "polygon"))
    if figure is None:
        return None
    name = PAGE_NAMES.get(figure.tag) or ("number" if figure.text.isdigit() else "letter")
    return button(scene, {"text": name.capitalize()})


def _fill(node: Node) -> str:
    """Name of the colour a shape is filled with."""
    return FILLS[node.attrs["fill"]]


def _size(node: Node) -> str:
    """The page draws small things 10 pixels wide and large ones 20; letters by their font size."""
    if node.tag == "text":
        return "large" if node.attrs["font-size"] == "20px" else "small"
    return "large" if node.w * 160 > 15 else "small"


def _kinds(node: Node) -> tuple[str, str]:
    """What the page calls a drawn thing: its own name, and its type."""
    if node.tag == "text":
        return node.text, "digit" if node.text.isdigit() else "letter"
    return PAGE_NAMES[node.tag], "shape"
