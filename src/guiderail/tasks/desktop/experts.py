"""Experts of the desktop suite: a short script of moves a template, aimed by the boxes of the accessibility tree.

Guarantees: a move that cannot find what it aims at says None (the expert has nothing left to do), so a wrong screen is
a miss, never a blind click; the last move is always a Finish. Thoughts have the forms of the tiny model's training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guiderail.actions.types import Action, Click, Finish, Key, Type
from guiderail.tasks.experts.scene import Decision, Facts, Node, Policy, Scene, reading_order

Do = Callable[[Scene, Facts], Decision | None]


@dataclass(frozen=True)
class Move:
    """One move: what it does; `looks`: whether it needs the scene (reading it costs a second)."""

    do: Do
    looks: bool = False


def key(*keys: str) -> Move:
    """Press a chord."""
    return Move(lambda scene, facts: (Key(keys), f"press {'+'.join(keys)}"))


def text(form: str) -> Move:
    """Type `form` with the instruction's facts filled in."""

    def do(scene: Scene, facts: Facts) -> Decision:
        written = form.format_map(facts)
        return Type(written), f'type "{" ".join(written.split())}"'

    return Move(do)


def total() -> Move:
    """Type the sum of facts["a"] and facts["b"]."""

    def do(scene: Scene, facts: Facts) -> Decision:
        written = str(int(facts["a"]) + int(facts["b"]))
        return Type(written), f'type "{written}"'

    return Move(do)


def click(name: str, *roles: str, count: int = 1) -> Move:
    """Click what is called `name` (facts filled in), of one of `roles`."""

    def do(scene: Scene, facts: Facts) -> Decision | None:
        wanted = name.format_map(facts)
        nodes = scene.find(*roles, text=wanted)
        return (Click(*_front(nodes).centre, count=count), f'click "{wanted}"') if nodes else None

    return Move(do, looks=True)


def _front(nodes: Sequence[Node]) -> Node:
    """Of several, the smallest box: a label inside what it labels; then the first in reading order."""
    smallest = min(n.w * n.h for n in nodes)
    return reading_order([n for n in nodes if n.w * n.h <= smallest * 1.01])[0]


DONE = Move(lambda scene, facts: (Finish("success"), "done"))
CANNOT = Move(lambda scene, facts: (Finish("failure"), "this cannot be done"))


@dataclass(frozen=True)
class Script:
    """A policy that does `moves` one after the other."""

    moves: tuple[Move, ...]

    def __call__(self, scene: Scene, facts: Facts, history: Sequence[Action]) -> Decision | None:
        """The next move; None when there is none left, or its target is not on the screen."""
        return self.moves[len(history)].do(scene, facts) if len(history) < len(self.moves) else None

    def looks(self, step: int) -> bool:
        """Whether move `step` needs the scene."""
        return step < len(self.moves) and self.moves[step].looks


def script(*moves: Move) -> Policy:
    """The policy of `moves`."""
    return Script(moves)


SAVE = key("ctrl", "s")
ENTER = key("enter")
ICON = ("icon", "table-cell", "list-item", "canvas")
BUTTON = ("push-button", "button", "toggle-button")

EXPERTS: dict[str, Policy] = {
    "editor-append": script(key("ctrl", "end"), text("{word}"), SAVE, DONE),
    "editor-first-line": script(key("ctrl", "home"), text("{word}\n"), SAVE, DONE),
    "editor-replace-all": script(key("ctrl", "a"), text("{word} {other}"), SAVE, DONE),
    "editor-new-file": script(text("{word}"), SAVE, text("{name}.txt"), click("Save", *BUTTON), DONE),
    "editor-save-copy": script(key("ctrl", "shift", "s"), text("{name}"), click("Save", *BUTTON), DONE),
    "editor-swap-word": script(
        key("ctrl", "r"), text("lorem"), key("tab"), text("{word}"), click("Replace all in:", "check-box"),
        click("Replace All", *BUTTON), click("Close", *BUTTON), SAVE, DONE,
    ),
    "editor-delete-line": script(key("ctrl", "home"), key("shift", "down"), key("delete"), SAVE, DONE),
    "editor-repeat-line": script(key("ctrl", "end"), text("{word}"), SAVE, DONE),
    "editor-two-lines": script(key("ctrl", "end"), text("{word}\n{other}"), SAVE, DONE),
    "editor-print": script(CANNOT),
    "files-new-folder": script(key("ctrl", "shift", "n"), text("{name}"), ENTER, DONE),
    "files-rename": script(click("{file}.txt", *ICON), key("f2"), text("{name}"), ENTER, DONE),
    "files-delete": script(click("{file}.txt", *ICON), key("delete"), ENTER, DONE),
    "files-copy": script(
        click("{file}.txt", *ICON), key("ctrl", "c"), click("archive", *ICON, count=2), key("ctrl", "v"), DONE
    ),
    "files-move": script(
        click("{file}.txt", *ICON), key("ctrl", "x"), click("archive", *ICON, count=2), key("ctrl", "v"), DONE
    ),
    "files-rename-folder": script(click("archive", *ICON), key("f2"), text("{name}"), ENTER, DONE),
    "terminal-mkdir": script(text("mkdir {name}\n"), DONE),
    "terminal-write": script(text("echo {word} > {name}\n"), DONE),
    "terminal-copy": script(text("cp plan.txt {name}.txt\n"), DONE),
    "terminal-remove": script(text("rm {file}.txt\n"), DONE),
    "terminal-rename": script(text("mv plan.txt {name}.txt\n"), DONE),
    "calc-add": script(text("{a}"), click("+", *BUTTON), text("{b}"), ENTER, DONE),
    "calc-multiply": script(text("{a}"), click("*", *BUTTON), text("{b}"), ENTER, DONE),
    "calc-subtract": script(text("{a}"), click("-", *BUTTON), text("{b}"), ENTER, DONE),
    "calc-to-file": script(key("ctrl", "a"), total(), SAVE, DONE),
    "viewer-save-copy": script(SAVE, text("{name}"), click("Save", *BUTTON), DONE),
    "viewer-delete": script(key("delete"), click("OK", *BUTTON), DONE),
}  # fmt: skip
"""Template -> the expert that solves it."""
