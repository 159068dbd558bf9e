"""What the codecs of model families share: the shape of parse and render, labelled thoughts, refusals, directions.

A family says how text splits into thought and call (`_split`), what a call means (`_read`), how an action is written
(`_write`) and how both are joined (`_join`); the guarantees of `guiderail.actions.codec` then hold as this class keeps
them: totality, points on the family's grid, one sentence for what is wrong.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from guiderail.actions.bounds import checked
from guiderail.actions.codec import NotExpressible
from guiderail.actions.grid import THOUSANDTHS, UNKNOWN_SCREEN, Grid, screen, snap
from guiderail.actions.prompts_full import SHORT_SYSTEM, SystemKind
from guiderail.actions.text import Unreadable, read_thought, take_think, write_thought
from guiderail.actions.types import Action, Parsed, ParseFailure, Scroll

NOTCHES = 5  # what a format means that says only "scroll down"; as UI-TARS' own runtime turns the wheel
_STEPS = {"down": (0, NOTCHES), "up": (0, -NOTCHES), "right": (NOTCHES, 0), "left": (-NOTCHES, 0)}


@dataclass(frozen=True)
class FamilyCodec(ABC):
    """A codec of relative coordinates (thousandths of the screen)."""

    name: ClassVar[str]
    prompts: ClassVar[tuple[str, str]]
    """The full system prompt, asking for a thought and not."""
    grid: Grid = THOUSANDTHS

    @abstractmethod
    def _split(self, text: str) -> tuple[str, Any]:
        """(thought, call) of model text. Raises Unreadable."""

    @abstractmethod
    def _read(self, call: Any) -> Action:
        """The action of a call. Raises Unreadable, or ValueError with a phrase that names what is wrong."""

    @abstractmethod
    def _write(self, action: Action) -> str:
        """The call that means a checked action on the grid. Raises NotExpressible."""

    @abstractmethod
    def _join(self, thought: str, call: str) -> str:
        """Model text of a thought ("" for none) and a call."""

    def parse(self, text: str) -> Parsed | ParseFailure:
        """Read one action and its thought. Never raises."""
        try:
            thought, call = self._split(text)
            return Parsed(checked(self._read(call)), thought)
        except Unreadable as e:
            return ParseFailure(str(e), text)
        except ValueError as e:
            return ParseFailure(f"{str(e)[:1].upper()}{str(e)[1:]}.", text)

    def render(self, action: Action, thought: str = "") -> str:
        """Canonical text. Raises ValueError on an action outside the algebra, NotExpressible on one without a form."""
        return self._join(thought, self._write(snap(action, self.grid)))

    def quantise(self, action: Action) -> Action:
        """The action on the codec's grid, seconds at 0.001. Raises like `render`."""
        action = snap(action, self.grid)
        self._write(action)
        return action

    def at(self, width: int, height: int) -> Self:
        """Itself: points are fractions of any screen."""
        return self

    def system_prompt(self, kind: SystemKind, thought: bool = True) -> str:
        """See `guiderail.actions.codec.Codec.system_prompt`."""
        if kind == "none":
            return ""
        return SHORT_SYSTEM if kind == "short" else self.prompts[not thought]

    def _refuse(self, action: Action, why: str) -> NotExpressible:
        return NotExpressible(self.name, action, why)


@dataclass(frozen=True)
class PixelCodec(FamilyCodec, ABC):
    """A codec whose coordinates are pixels of the frame as the model sees it; `at` says how large that is."""

    grid: Grid = UNKNOWN_SCREEN

    def at(self, width: int, height: int) -> Self:
        """The codec for frames of width x height pixels. Raises ValueError on an empty frame."""
        return replace(self, grid=screen(width, height))


def take_labelled(text: str, thought_label: str, action_label: str) -> tuple[str, str]:
    """Split `Thought: ...` / `Action: ...` text at the first line that begins with the action's label.

    Labels are regular expressions, any case. Text without an action line is all call. Returns (thought, call text).
    Raises Unreadable when there is a thought line but no action line.
    """
    think, text = take_think(text)
    labelled = re.match(rf"\s*(?:{thought_label})\s*:", text, re.IGNORECASE)
    action = re.search(rf"^[ \t]*(?:{action_label})[ \t]*:", text, re.IGNORECASE | re.MULTILINE)
    if action is None:
        if labelled:
            raise Unreadable("The thought is not followed by a line that names the action.")
        return read_thought(think), text
    start = labelled.end() if labelled and labelled.end() <= action.start() else 0
    return read_thought(text[start : action.start()]) or read_thought(think), text[action.end() :]


def labelled_thought(thought: str, action_label: str) -> str:
    """The thought on one line that may stand at the start of a line: it never reads like the action's label."""
    label = re.compile(rf"(\s*(?:{action_label})\s*):", re.IGNORECASE)
    return write_thought(thought, lambda line: label.sub(r"\1\\u003a", line, count=1) if label.match(line) else line)


def take_fence(text: str) -> str:
    """The content of a code fence that is the whole of `text`; other text as it is. Raises Unreadable when open."""
    stripped = text.strip()
    if not stripped.startswith("```"):
        return text
    if len(stripped) < 6 or not stripped.endswith("```"):
        raise Unreadable("The code fence is not closed, or text follows it.")
    return re.sub(r"\A[A-Za-z]*[ \t]*(?:\r?\n|\Z)", "", stripped[3:-3])


def scrolled(direction: Any, x: float = 0.5, y: float = 0.5) -> Scroll:
    """The scroll that shows what lies in `direction` (up, down, left, right). Raises ValueError."""
    step = _STEPS.get(direction.strip().lower()) if isinstance(direction, str) else None
    if step is None:
        raise ValueError("direction must be up, down, left or right")
    return Scroll(x, y, *step)


def direction(scroll: Scroll) -> str | None:
    """The direction that `scrolled` reads as this scroll's steps; None when there is none."""
    return next((name for name, step in _STEPS.items() if step == (scroll.dx, scroll.dy)), None)
