"""Read the accessibility tree: run by the desktop's own python3 among the programs, with python3-gi and Atspi.

`python3 -I - tree` writes OSWorld's XML (one element per accessible, its role as the tag); `terminal` the text of the
terminal that is shown. Whatever a program calls its parts, the XML can be read. Bounded: at most LIMIT elements, DEPTH
levels, TEXT characters each.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from typing import Any

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

LIMIT, DEPTH, TEXT = 6000, 60, 4000
NS = {n: f"https://accessibility.ubuntu.example.org/ns/{p}" for n, p in {
    "st": "state", "attr": "attributes", "cp": "component", "txt": "text", "val": "value", "act": "action",
}.items()}  # fmt: skip
STATES = (
    "ACTIVE", "CHECKED", "EDITABLE", "ENABLED", "EXPANDED", "EXPANDABLE", "FOCUSABLE", "FOCUSED", "PRESSED",
    "SELECTABLE", "SELECTED", "SENSITIVE", "SHOWING", "VISIBLE", "MODAL", "MULTI_LINE", "CHECKABLE",
)  # fmt: skip
left = [LIMIT]


def clean(text: str) -> str:
    """Characters that XML may hold."""
    return "".join(
        c for c in text if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
    )


def text_of(node: Any) -> str:
    """The node's own text."""
    try:
        if node.get_text_iface() is None:
            return ""
        return str(Atspi.Text.get_text(node, 0, min(TEXT, Atspi.Text.get_character_count(node))))
    except GLib.Error:
        return ""


def element(node: Any) -> ET.Element:
    """The element of one accessible, without children."""
    tag = "".join(c if c.isascii() and c.isalnum() else "-" for c in (node.get_role_name() or "unknown").lower())
    if not tag[:1].isalpha():
        tag = "x" + tag
    out = ET.Element(tag, {"name": clean(node.get_name() or "")})
    states = node.get_state_set()
    for name in STATES:
        if states.contains(getattr(Atspi.StateType, name)):
            out.set(f"{{{NS['st']}}}{name.lower()}", "true")
    component = node.get_component_iface()
    if component is not None:
        box = Atspi.Component.get_extents(node, Atspi.CoordType.SCREEN)
        out.set(f"{{{NS['cp']}}}screencoord", f"({box.x}, {box.y})")
        out.set(f"{{{NS['cp']}}}size", f"({box.width}, {box.height})")
    if node.get_value_iface() is not None:
        out.set(f"{{{NS['val']}}}value", str(Atspi.Value.get_current_value(node)))
    if node.get_action_iface() is not None:
        for i in range(Atspi.Action.get_n_actions(node)):
            name = Atspi.Action.get_action_name(node, i)
            if name:
                key = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
                key = key if key[0].isalpha() else "_" + key
                out.set(f"{{{NS['act']}}}{key}_desc", clean(Atspi.Action.get_action_description(node, i) or ""))
    text = text_of(node)
    if text:
        out.text = clean(text)
    return out


def walk(node: Any, depth: int) -> ET.Element | None:
    """The element of `node` with its children; None when it vanishes or the limit is reached."""
    left[0] -= 1
    if left[0] < 0:
        return None
    try:
        out = element(node)
        count = node.get_child_count() if depth else 0
        if node.get_state_set().contains(Atspi.StateType.MANAGES_DESCENDANTS):
            count = min(count, 400)
    except GLib.Error:
        return None
    for i in range(count):
        if left[0] < 0:
            break
        try:
            child = node.get_child_at_index(i)
        except GLib.Error:
            continue
        if child is not None and (found := walk(child, depth - 1)) is not None:
            out.append(found)
    return out


def terminal(node: Any, depth: int) -> str | None:
    """Text of the first terminal that is shown, below `node`."""
    left[0] -= 1
    if depth == 0 or left[0] < 0:
        return None
    try:
        if node.get_role() == Atspi.Role.TERMINAL and node.get_state_set().contains(Atspi.StateType.SHOWING):
            return text_of(node).rstrip()
        children = [node.get_child_at_index(i) for i in range(node.get_child_count())]
    except GLib.Error:
        return None
    for child in children:
        found = terminal(child, depth - 1) if child is not None else None
        if found is not None:
            return found
    return None


def main(what: str) -> None:
    """Write what was asked for."""
    Atspi.init()
    Atspi.set_timeout(2000, 5000)
    desktop = Atspi.get_desktop(0)
    if what == "terminal":
        sys.stdout.write(terminal(desktop, DEPTH) or "")
        return
    for prefix, uri in NS.items():
        ET.register_namespace(prefix, uri)
    root = ET.Element("desktop-frame", {"name": "main"})
    for i in range(desktop.get_child_count()):
        found = walk(desktop.get_child_at_index(i), DEPTH)
        if found is not None:
            root.append(found)
    sys.stdout.write(ET.tostring(root, encoding="unicode"))


main(sys.argv[1])
