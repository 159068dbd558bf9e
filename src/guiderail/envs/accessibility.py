"""The accessibility tree (OSWorld's XML) as a flat list of what is on the screen, for scripted experts.

Guarantees: only elements with a place on the screen; boxes are fractions of the screen, cut at its edges. XML of the
guest is parsed without entities or DTD (expat refuses a document with one here).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any
from xml.parsers.expat import ExpatError

NS = "https://accessibility.ubuntu.example.org/ns/"
STATE, COMPONENT = f"{{{NS}state}}", f"{{{NS}component}}"
PAIR = re.compile(r"\((-?\d+), (-?\d+)\)")


def elements(xml: str, width: int, height: int) -> list[dict[str, Any]]:
    """Elements in document order: role, name, text, states (sorted), app, x, y, w, h. Raises ValueError."""
    if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
        raise ValueError("the accessibility tree declares a document type; it is not read")
    try:
        root = ET.fromstring(xml)
    except (ET.ParseError, ExpatError) as e:
        raise ValueError(f"the accessibility tree is not XML: {e}") from None
    found: list[dict[str, Any]] = []
    for app in root:
        for node in app.iter():
            box = _box(node, width, height)
            if box is None:
                continue
            states = sorted(
                k.removeprefix(STATE) for k, v in node.attrib.items() if k.startswith(STATE) and v == "true"
            )
            if "showing" not in states:
                continue
            row = {"role": node.tag, "name": node.get("name", ""), "text": node.text or "", "states": states}
            found.append({**row, "app": app.get("name", ""), **box})
    return found


def _box(node: ET.Element, width: int, height: int) -> dict[str, float] | None:
    """The visible part of its box; None when nothing of it is on the screen."""
    at, size = PAIR.fullmatch(node.get(f"{COMPONENT}screencoord", "")), PAIR.fullmatch(node.get(f"{COMPONENT}size", ""))
    if at is None or size is None:
        return None
    left, top = max(0, int(at[1])), max(0, int(at[2]))
    right, bottom = min(width, int(at[1]) + int(size[1])), min(height, int(at[2]) + int(size[2]))
    if right <= left or bottom <= top:
        return None
    return {"x": left / width, "y": top / height, "w": (right - left) / width, "h": (bottom - top) / height}
