"""Experts of the office suite: keys that LibreOffice has on every screen (its toolbars may not fit)."""

from __future__ import annotations

from guiderail.tasks.desktop.experts import DONE, SAVE, key, script, text
from guiderail.tasks.experts.scene import Policy

GO_TO = key("ctrl", "shift", "t")
"""Calc: the box that holds the name of a cell or range, and takes one to go to."""

OFFICE_EXPERTS: dict[str, Policy] = {
    "sheet-set-cell": script(GO_TO, text("{cell}\n"), text("{value}\n"), SAVE, DONE),
    "sheet-sum": script(GO_TO, text("B4\n"), text("=SUM(B2:B3)\n"), SAVE, DONE),
    "sheet-bold-heading": script(GO_TO, text("A1:B1\n"), key("ctrl", "b"), SAVE, DONE),
    "writer-append": script(key("ctrl", "end"), text("\n{word}"), SAVE, DONE),
    "writer-first-paragraph": script(key("ctrl", "home"), text("{word}\n"), SAVE, DONE),
    "writer-centre": script(key("ctrl", "home"), key("ctrl", "e"), SAVE, DONE),
}
"""Template -> the expert that solves it."""
