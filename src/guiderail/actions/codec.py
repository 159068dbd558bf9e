"""What a codec is, and the registry of codecs: the only door between action objects and model text.

Guarantees of every codec: `parse` is total (any string gives Parsed or ParseFailure, never an exception) and never
executes anything; `parse(render(a, t)) == Parsed(quantise(a), well_formed(t))` for every thought and every valid action
that the format has a form for; an action that it has none for is NotExpressible, never written as another one; what
`parse` gives can always be rendered again.
A codec holds no state. It knows no tokenizer, and no screen unless its format counts pixels: then `at` binds it to one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from guiderail.actions.prompts_full import SystemKind
from guiderail.actions.types import Action, Parsed, ParseFailure

# name -> module:class
CODECS = {
    "agentcpm": "agentcpm:AgentCPMCodec",
    "generic_v2": "generic_v2:GenericV2Codec",
    "guiderail": "guiderail_dsl:GuiderailCodec",
    "openadapt": "openadapt:OpenAdaptCodec",
    "openadapt_json": "openadapt:OpenAdaptJsonCodec",
    "os_atlas": "os_atlas:OSAtlasCodec",
    "os_genesis": "os_genesis:OSGenesisCodec",
    "pyautogui": "pyautogui:PyAutoGUICodec",
    "qwen25vl": "ui_s1:Qwen25VLCodec",
    "qwen3vl": "qwen3vl:Qwen3VLCodec",
    "ui_s1": "ui_s1:UIS1Codec",
    "ui_tars": "ui_tars:UITarsCodec",
    "ui_tars15": "ui_tars:UITars15Codec",
}


class NotExpressible(ValueError):
    """A valid action for which a codec's format has no form."""

    def __init__(self, codec: str, action: Action, why: str) -> None:
        super().__init__(f"codec {codec} cannot express {type(action).__name__}: {why}")
        self.codec, self.action, self.why = codec, action, why


class Codec(Protocol):
    """One text format for actions."""

    @property
    def name(self) -> str:
        """Key in `params.prompt.codec`."""
        ...

    def at(self, width: int, height: int) -> Codec:
        """The codec for a frame of `width` x `height` pixels as the model sees it (after the processor's resize).

        A format of relative coordinates gives itself; one of pixels reads and writes no point before it was bound.
        """
        ...

    def parse(self, text: str) -> Parsed | ParseFailure:
        """Read exactly one action with its thought from model text. Never raises."""
        ...

    def render(self, action: Action, thought: str = "") -> str:
        """Write `action` in canonical form, after its thought when `thought` is not empty.

        Raises ValueError on an action outside the algebra (a point off the screen, a non-finite number, no key) and
        NotExpressible on one that the format has no form for.
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
    if name not in CODECS:
        raise ValueError(f"prompt.codec = {name!r}: no such codec; choose one of {sorted(CODECS)}")
    module, _, cls = CODECS[name].partition(":")
    codec: Codec = getattr(import_module(f"guiderail.actions.{module}"), cls)()
    return codec
