"""What a codec is, and the registry of codecs: the only door between action objects and model text.

Guarantees of every codec: `parse` is total (any string gives Parsed or ParseFailure, never an exception) and never
executes anything; `parse(render(a, t)) == Parsed(quantise(a), well_formed(t))` for every valid action and thought.
A codec holds no state and does not know pixels, screens or tokenizers.
"""

from __future__ import annotations

from typing import Protocol

from guiderail.actions.guiderail_dsl import GuiderailCodec
from guiderail.actions.prompts_full import SystemKind
from guiderail.actions.qwen3vl import Qwen3VLCodec
from guiderail.actions.types import Action, Parsed, ParseFailure


class Codec(Protocol):
    """One text format for actions."""

    @property
    def name(self) -> str:
        """Key in `params.prompt.codec`."""
        ...

    def parse(self, text: str) -> Parsed | ParseFailure:
        """Read exactly one action with its thought from model text. Never raises."""
        ...

    def render(self, action: Action, thought: str = "") -> str:
        """Write `action` in canonical form, after its thought line when `thought` is not empty.

        Raises ValueError on an action outside the algebra (a point off the screen, a non-finite number, no key).
        """
        ...

    def quantise(self, action: Action) -> Action:
        """`action` at the codec's resolution: what `parse(render(action))` gives back. Raises like `render`."""
        ...

    def system_prompt(self, kind: SystemKind, thought: bool = True) -> str:
        """System turn: "" for none, "Work the screen." for short, action space and response format for full."""
        ...


def get_codec(name: str) -> Codec:
    """The codec called `name`. Raises ValueError naming those that exist."""
    codecs: dict[str, Codec] = {"guiderail": GuiderailCodec(), "qwen3vl": Qwen3VLCodec()}
    if name not in codecs:
        raise ValueError(f"prompt.codec = {name!r}: no such codec; choose one of {sorted(codecs)}")
    return codecs[name]
