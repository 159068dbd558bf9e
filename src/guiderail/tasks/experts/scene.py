"""What an expert sees: the visible elements of a page, with boxes in screen fractions.

Guarantees: elements keep document order; what has its middle off the screen is left out. Knows geometry only, no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from guiderail.actions.types import Action, Click, Drag, Move, Scroll

GRID = 0.025
"""Grid of demonstrated points (4 x 5.6 pixels on a 160 x 224 screen)."""

CLICKABLE = frozenset({"a", "button", "h3", "input", "option", "select", "textarea"})


@dataclass(frozen=True)
class Box:
    """A rectangle in screen fractions: top-left corner and size."""

    x: float
    y: float
    w: float
    h: float

    @property
    def centre(self) -> tuple[float, float]:
        """(x, y) of the middle."""
        return self.x + self.w / 2, self.y + self.h / 2

    def contains(self, x: float, y: float, margin: float = 0.0) -> bool:
        """Whether (x, y) lies inside, the box grown by `margin` on every side."""
        return self.x - margin <= x <= self.x + self.w + margin and self.y - margin <= y <= self.y + self.h + margin


@dataclass(frozen=True)
class Word(Box):
    """One printed word."""

    text: str = ""


@dataclass(frozen=True)
class Node(Box):
    """One visible element; `words` are those of its own text, in reading order."""

    tag: str = ""
    id: str = ""
    classes: frozenset[str] = frozenset()
    text: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Scene:
    """The elements an expert may act on, in document order."""

    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, oracle: Sequence[Mapping[str, Any]]) -> Scene:
        """Build from `Env.oracle()`. Raises KeyError when a fact lacks a field of the contract."""
        nodes = (_node(fact) for fact in oracle)
        return cls(tuple(n for n in nodes if n.w > 0 and n.h > 0 and all(0 <= v <= 1 for v in n.centre)))

    def find(
        self, *tags: str, id: str | None = None, cls: str | None = None, text: str | None = None, **attrs: str
    ) -> list[Node]:
        """Elements with one of `tags` (any when none) that have all the other properties, in document order.

        `text` compares without surrounding blanks; attribute names are written with _ for -.
        """
        wanted = {k.replace("_", "-"): v for k, v in attrs.items()}
        return [
            n
            for n in self.nodes
            if (not tags or n.tag in tags)
            and (id is None or n.id == id)
            and (cls is None or cls in n.classes)
            and (text is None or n.text.strip() == text)
            and all(n.attrs.get(k) == v for k, v in wanted.items())
        ]

    def words_of(self, node: Node) -> tuple[Word, ...]:
        """Words printed in `node`: its own, or those of the elements inside its box when it has none itself."""
        if node.words:
            return node.words
        inside = {w: None for n in self.nodes for w in n.words if node.contains(*w.centre)}
        return tuple(sorted(inside, key=lambda w: (round(w.y, 3), w.x)))

    def element(self, x: float, y: float) -> Box:
        """The smallest element at a point that is made to be clicked, else the smallest at all, else the point."""
        at = [n for n in self.nodes if n.contains(x, y)]
        made = [n for n in at if n.tag in CLICKABLE] or at
        return min(made, key=lambda n: n.w * n.h) if made else Box(x, y, 0.0, 0.0)

    def textboxes(self) -> list[Node]:
        """Inputs one can type into, top to bottom."""
        kinds = ("text", "password", "input", "search", "")
        boxes = [
            n for n in self.nodes if n.tag == "textarea" or (n.tag == "input" and n.attrs.get("type", "") in kinds)
        ]
        return reading_order(boxes)

    def covering(self, node: Node) -> list[Node]:
        """Buttons drawn after `node` that overlap it."""
        later = self.nodes[self.nodes.index(node) + 1 :]
        return [n for n in later if n.tag == "button" and _overlap(n, node)]


Facts = Mapping[str, str]
"""What an instruction says, by placeholder name, e.g. {"text": "Ok"}."""

Decision = tuple[Action, str]
"""An action and the thought that goes with it."""

Policy = Callable[[Scene, Facts, Sequence[Action]], Decision | None]
"""What an expert does on a scene, given the instruction's facts and its own past actions; None = nothing left to do."""


def reading_order(nodes: Iterable[Node]) -> list[Node]:
    """Top to bottom, then left to right."""
    return sorted(nodes, key=lambda n: (round(n.y, 3), n.x))


def union(boxes: Sequence[Box]) -> Box:
    """Smallest box around `boxes` (at least one)."""
    x, y = min(b.x for b in boxes), min(b.y for b in boxes)
    return Box(x, y, max(b.x + b.w for b in boxes) - x, max(b.y + b.h for b in boxes) - y)


def snap(action: Action, grid: float = GRID) -> Action:
    """`action` with its points rounded to `grid` (fractions of the screen), to three decimals, inside [0, 1]."""

    def r(v: float) -> float:
        return round(min(1.0, max(0.0, round(v / grid) * grid)), 3)

    if isinstance(action, Drag):
        return replace(action, x=r(action.x), y=r(action.y), x2=r(action.x2), y2=r(action.y2))
    if isinstance(action, Click | Move | Scroll):
        return replace(action, x=r(action.x), y=r(action.y))
    return action


def free_point(
    node: Node, aim: tuple[float, float], covers: Sequence[Box], grid: float = GRID
) -> tuple[float, float] | None:
    """A point of `node` near `aim` that no box of `covers` hides, also after rounding to `grid`; None if there is none.

    The aim itself when it is free with room for the rounding, else the nearest grid point inside the node.
    """
    if not any(c.contains(*aim, margin=grid / 2) for c in covers):
        return aim
    n = round(1 / grid)
    points = [(round(i * grid, 6), round(j * grid, 6)) for i in range(n + 1) for j in range(n + 1)]
    free = [
        p for p in points if node.contains(*p, margin=-0.004) and not any(c.contains(*p, margin=0.004) for c in covers)
    ]
    return min(free, key=lambda p: (p[0] - aim[0]) ** 2 + (p[1] - aim[1]) ** 2, default=None)


def _overlap(a: Box, b: Box) -> bool:
    return a.x < b.x + b.w and b.x < a.x + a.w and a.y < b.y + b.h and b.y < a.y + a.h


def _node(fact: Mapping[str, Any]) -> Node:
    if "role" in fact:  # an element of an accessibility tree, not of a page
        text = fact["name"] or fact["text"]
        return Node(fact["x"], fact["y"], fact["w"], fact["h"], tag=fact["role"], text=text, attrs={"app": fact["app"]})
    words = tuple(Word(w["x"], w["y"], w["w"], w["h"], w["text"]) for w in fact["words"])
    return Node(
        fact["x"], fact["y"], fact["w"], fact["h"],
        tag=fact["tag"], id=fact["id"] or "", classes=frozenset(fact["classes"]),
        text=fact["text"] or fact.get("inner", ""), attrs=fact["attrs"], words=words,
    )  # fmt: skip
