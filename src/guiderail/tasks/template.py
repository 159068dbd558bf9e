"""What a template is: a page, its step budget, its wordings, and the scripted expert that solves it.

Guarantees: an instruction is read by the template's own wordings only (anything else is an error that shows both), and
every wording carries the same facts, so `read(reword(i, n)) == read(i)`. Does not know the browser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guiderail.actions.types import Action
from guiderail.tasks.experts.scene import Decision, Policy, Scene

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Template:
    """One MiniWoB++ page as a task.

    name: the page's file name without .html. domain: coarse group for reports. max_steps: expert length plus about two.
    policy: the scripted expert. wordings: instruction formats with {placeholders}; the first is the page's own.
    threshold: raw reward that counts as success. heldout: kept out of training by default.
    steps: (fewest, most) actions of the expert. scripted: whether there is an expert.
    """

    name: str
    domain: str
    steps: tuple[int, int]
    max_steps: int
    policy: Policy
    wordings: tuple[str, ...]
    threshold: float = 1.0
    heldout: bool = False
    scripted: bool = True

    def read(self, instruction: str) -> dict[str, str]:
        """Facts of `instruction`, in any of the wordings. Raises ValueError when it is none of them."""
        for pattern in map(_pattern, self.wordings):
            match = re.fullmatch(pattern, instruction, re.DOTALL)
            if match:
                return match.groupdict()
        raise ValueError(f"{self.name}: instruction {instruction!r} fits none of the wordings {self.wordings}")

    def check_wording(self, wording: int) -> None:
        """Raises ValueError when there is no wording of that number."""
        if not 0 <= wording < len(self.wordings):
            raise ValueError(
                f"{self.name}: wording {wording} does not exist; it has {len(self.wordings)} (0 = the page's own)"
            )

    def reword(self, instruction: str, wording: int) -> str:
        """`instruction` in wording number `wording` (0 = the page's own words, returned as they are)."""
        self.check_wording(wording)
        return instruction if wording == 0 else self.wordings[wording].format(**self.read(instruction))

    def looks(self, step: int) -> bool:
        """Whether the expert needs the scene for its action number `step` (a script that types blindly does not)."""
        ask = getattr(self.policy, "looks", None)
        return True if ask is None else bool(ask(step))

    def expert(
        self, oracle: Sequence[Mapping[str, Any]], instruction: str, step: int, history: Sequence[Action] = ()
    ) -> Decision | None:
        """The expert's next action and thought, or None when it has nothing left to do.

        oracle: facts of `Env.oracle()`. history: the actions done so far, in order, `step` of them.
        A pure function; raises ValueError when the instruction is foreign or `history` is not `step` long.
        """
        if len(history) != step:
            raise ValueError(f"{self.name}: step {step} with a history of {len(history)} actions; pass all of them")
        return self.policy(Scene.of(oracle), self.read(instruction), history)


def _pattern(wording: str) -> str:
    """A regular expression that reads a wording: placeholders become named groups, the rest is literal."""
    parts = _PLACEHOLDER.split(wording)
    out: list[str] = []
    seen: set[str] = set()
    for i, part in enumerate(parts):
        if i % 2 == 0:
            out.append(re.escape(part))
        elif part in seen:
            out.append(f"(?P={part})")
        else:
            seen.add(part)
            out.append(f"(?P<{part}>.+?)")
    return "".join(out)
