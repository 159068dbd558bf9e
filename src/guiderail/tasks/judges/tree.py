"""Metrics over the accessibility tree (XML of the guest)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from guiderail.tasks.judges.safe import parse_xml

Rules = Mapping[str, Any]
NAMESPACES = {
    side: f"https://accessibility.{system}.example.org/ns/{what}"
    for side, system, what in (
        ("st", "ubuntu", "state"), ("attr", "ubuntu", "attributes"), ("cp", "ubuntu", "component"),
        ("doc", "ubuntu", "document"), ("docattr", "ubuntu", "document/attributes"), ("txt", "ubuntu", "text"),
        ("val", "ubuntu", "value"), ("act", "ubuntu", "action"),
    )
}  # fmt: skip


def check_accessibility_tree(result: str | None, rules: Iterable[Rules]) -> float:
    """1 when for each rule some element is chosen by rule["xpath"] or rule["selectors"] (CSS) and, where the rule has a
    text, shows it: the whole text (exact) or at least nine tenths alike."""
    if not result:
        return 0.0
    root = parse_xml(result.encode(), "accessibility.xml")
    return float(all(_found(root, rule) for rule in rules))


def _found(root: Any, rule: Rules) -> bool:
    if "xpath" in rule:
        elements = root.xpath(rule["xpath"], namespaces=NAMESPACES)
    elif "selectors" in rule:
        from lxml.cssselect import CSSSelector

        elements = CSSSelector(", ".join(rule["selectors"]), namespaces=NAMESPACES)(root)
    else:
        raise ValueError("check_accessibility_tree: a rule needs xpath or selectors")
    if not elements or "text" not in rule:
        return bool(elements)
    shown = [(e.text or e.get("name") or "").strip() for e in elements]
    if rule.get("exact", True):
        return rule["text"] in shown
    from rapidfuzz import fuzz

    return any(fuzz.ratio(s, rule["text"]) >= 90 for s in shown)


def check_left_panel(result: str | None) -> float:
    """1 when Impress shows its panel of slides."""
    return check_accessibility_tree(result, [{"xpath": "//*[@name='Slides View']"}])
