"""Experts of the desktop suite: a short script of moves a template, aimed by the boxes of the accessibility tree.

Guarantees: a move that cannot find what it aims at says None (the expert has nothing left to do), so a wrong screen is
a miss, never a blind click; the last move is always a Finish. Thoughts have the forms of the tiny model's training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guiderail.actions.types import Action, Click, Finish, Key, Type
from guiderail.tasks.experts.scene import Decision, Facts, Node, Policy, Scene, reading_order

Move = Callable[[Scene, Facts], Decision | None]


def key(*keys: str) -> Move:
    """Press a chord."""
    return lambda scene, facts: (Key(keys), f"press {'+'.join(keys)}")


def text(form: str) -> Move:
    """Type `form` with the instruction's facts filled in."""

    def move(scene: Scene, facts: Facts) -> Decision:
        written = form.format_map(facts)
        return Type(written), f'type "{" ".join(written.split())}"'

    return move


def work_out(form: str) -> Move:
    """Type the result of `form`, e.g. "{a}+{b}" (whole numbers, one of + - *)."""

    def move(scene: Scene, facts: Facts) -> Decision:
        a, b = int(facts["a"]), int(facts["b"])
        written = str({"+": a + b, "-": a - b, "*": a * b}[form])
        return Type(written), f'type "{written}"'

    return move


def click(name: str, *roles: str, count: int = 1) -> Move:
    """Click what is called `name` (facts filled in), of one of `roles`."""

    def move(scene: Scene, facts: Facts) -> Decision | None:
        wanted = name.format_map(facts)
        nodes = scene.find(*roles, text=wanted)
        if not nodes:
            return None
        node = _front(nodes)
        return Click(*node.centre, count=count), f'click "{wanted}"'

    return move


def _front(nodes: Sequence[Node]) -> Node:
    """Of several, the smallest box: a label inside what it labels; then the first in reading order."""
    smallest = min(n.w * n.h for n in nodes)
    return reading_order([n for n in nodes if n.w * n.h <= smallest * 1.01])[0]


def done(scene: Scene, facts: Facts) -> Decision:
    """Say that the task is done."""
    return Finish("success"), "done"


def cannot(scene: Scene, facts: Facts) -> Decision:
    """Say that the task cannot be done."""
    return Finish("failure"), "this cannot be done"


def script(*moves: Move) -> Policy:
    """A policy that does `moves` one after the other."""

    def policy(scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
        return moves[len(history)](scene, facts) if len(history) < len(moves) else None

    return policy


SAVE = key("ctrl", "s")
ENTER = key("enter")
ICON = ("icon", "table-cell", "list-item", "canvas")
BUTTON = ("push-button", "button")

EXPERTS: dict[str, Policy] = {
    "editor-append": script(key("ctrl", "end"), text("{word}"), SAVE, done),
    "editor-first-line": script(key("ctrl", "home"), text("{word}\n"), SAVE, done),
    "editor-replace-all": script(key("ctrl", "a"), text("{word} {other}"), SAVE, done),
    "editor-new-file": script(text("{word}"), SAVE, text("{name}.txt"), ENTER, done),
    "editor-save-copy": script(key("ctrl", "shift", "s"), text("{name}"), ENTER, done),
    "editor-swap-word": script(
        key("ctrl", "r"), text("lorem"), key("tab"), key("tab"), text("{word}"), click("Replace all in:", "check-box"),
        click("Replace", *BUTTON), SAVE, done,
    ),
    "editor-delete-line": script(key("ctrl", "home"), key("shift", "down"), key("delete"), SAVE, done),
    "editor-repeat-line": script(key("ctrl", "end"), text("{word}"), SAVE, done),
    "editor-two-lines": script(key("ctrl", "end"), text("{word}\n{other}"), SAVE, done),
    "editor-print": script(cannot),
    "files-new-folder": script(key("ctrl", "shift", "n"), text("{name}"), ENTER, done),
    "files-rename": script(click("{file}.txt", *ICON), key("f2"), text("{name}"), ENTER, done),
    "files-delete": script(click("{file}.txt", *ICON), key("delete"), ENTER, done),
    "files-copy": script(click("{file}.txt", *ICON), key("ctrl", "c"), click("archive", *ICON, count=2), key("ctrl", "v"), done),
    "files-move": script(click("{file}.txt", *ICON), key("ctrl", "x"), click("archive", *ICON, count=2), key("ctrl", "v"), done),
    "files-rename-folder": script(click("archive", *ICON), key("f2"), text("{name}"), ENTER, done),
    "terminal-mkdir": script(text("mkdir {name}\n"), done),
    "terminal-write": script(text("echo {word} > {name}\n"), done),
    "terminal-copy": script(text("cp plan.txt {name}.txt\n"), done),
    "terminal-remove": script(text("rm {file}.txt\n"), done),
    "terminal-rename": script(text("mv plan.txt {name}.txt\n"), done),
    "calc-add": script(text("{a}+{b}"), ENTER, done),
    "calc-multiply": script(text("{a}*{b}"), ENTER, done),
    "calc-subtract": script(text("{a}-{b}"), ENTER, done),
    "calc-to-file": script(key("ctrl", "a"), work_out("+"), SAVE, done),
    "viewer-save-copy": script(SAVE, text("{name}"), ENTER, done),
    "viewer-delete": script(key("delete"), click("OK", *BUTTON), done),
}  # fmt: skip
"""Template -> the expert that solves it."""
