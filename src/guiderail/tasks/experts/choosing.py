"""Experts of pages with several clicks: choices with a Submit, button sequences, sections and trees to open.

They work from what is visible and from their own past actions, so where something must be searched for they search
as an agent could: section by section from the top, never by peeking into hidden parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from guiderail.actions.types import Action
from guiderail.tasks.experts.moves import click_text, clicked
from guiderail.tasks.experts.pointing import click_choice, link
from guiderail.tasks.experts.scene import Decision, Facts, Node, Scene, reading_order

NOTHING = "nothing"


def submit(scene: Scene) -> Decision | None:
    """Click the page's submit button."""
    nodes = scene.find("button", id="subbtn") or scene.find("button", id="submit")
    return click_text(scene, nodes[0]) if nodes else None


def options(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Click the small box of every label in facts["names"] (comma-separated), top to bottom, then Submit."""
    names = [] if facts["names"] == NOTHING else facts["names"].split(", ")
    for box in reading_order(scene.find("input")):
        kind = box.attrs.get("type", "")
        if kind not in ("checkbox", "radio"):
            continue
        label = next((n for n in scene.find("label") if n.contains(*box.centre)), None)
        if label is not None and label.text.strip() in names and not clicked(box, history):
            return click_choice(scene, box, kind)
    return submit(scene)


def sequence(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Click the buttons facts["first"] and facts["second"], in this order."""
    labels = (facts["first"], facts["second"])
    if len(history) >= len(labels):
        return None
    nodes = scene.find("button", text=labels[len(history)])
    return click_text(scene, nodes[0]) if nodes else None


def parity(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Click Odd or Even beside every number, top to bottom, then Submit."""
    for number in reading_order(scene.find(cls="display-number")):
        odd = int(number.text) % 2 == 1
        beside = [
            n for n in scene.find("button", cls="odd" if odd else "even") if abs(n.centre[1] - number.centre[1]) < n.h
        ]
        button = min(beside, key=lambda n: abs(n.centre[1] - number.centre[1]))
        if not clicked(button, history):
            return click_text(scene, button)
    return submit(scene)


def expand(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Open the one section, then click Submit."""
    headers = scene.find("h3")
    return submit(scene) if history or not headers else click_text(scene, headers[0])


def _search(scene: Scene, facts: Facts, places: Sequence[Node], history: Sequence[Action]) -> Decision | None:
    """Click the link facts["text"] if it is visible, else open the next of `places` (in order) not opened yet."""
    found = link(scene, facts)
    if found:
        return found
    unopened = [p for p in places if not clicked(p, history)]
    return click_text(scene, unopened[0]) if unopened else None


def tabs(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Look for a link through the tabs, from the one after the first, which is open at the start."""
    anchors = [n for n in scene.find("a") if n.text.strip().startswith("Tab #")]
    return _search(scene, facts, reading_order(anchors)[1:], history)


def sections(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Look for a link through the sections, top to bottom; headers move, so they are known by their label."""
    found = link(scene, facts)
    if found:
        return found
    headers = reading_order(scene.find("h3"))
    return click_text(scene, headers[len(history)]) if len(history) < len(headers) else None


def tree(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
    """Look for an entry of a file tree: click it if it is visible, else open the folders top to bottom."""
    entries = scene.find("span", cls="file") + scene.find("span", cls="folder")
    named = reading_order([n for n in entries if n.text.strip() == facts["text"]])
    if named:
        return click_text(scene, named[0])
    folders = [n for n in reading_order(scene.find("span", cls="folder")) if not clicked(n, history, margin=0.0)]
    return click_text(scene, folders[0]) if folders else None
