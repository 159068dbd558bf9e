"""Whether a model's tokenizer can write what the prompt parameters ask for, found without loading the model.

Guarantees: a codec whose calls the tokenizer cannot spell, a `max_new_tokens` that would cut every call, and a system
prompt that leaves the model no room are refused before any work. Needs tokenizer.json; a folder without one passes.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from guiderail.actions.codec import get_codec
from guiderail.actions.types import Action, Click, Drag, Key, Scroll, Type
from guiderail.models.folder import CheckpointError, read_json
from guiderail.models.prompts import SPECIAL_TOKENS
from guiderail.params import ParamError, Prompt

THOUGHT = 'click "Submit"'
CLICK = Click(0.475, 0.25)
SAMPLES: tuple[Action, ...] = (CLICK, Drag(0, 0, 1, 1), Scroll(0.5, 0.5, 0, 3), Key(("ctrl", "a")), Type('"é"'))


def check_fit(folder: Path, prompt: Prompt) -> None:
    """Refuse prompt parameters that the tokenizer in `folder` cannot serve. Raises ParamError, CheckpointError."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as e:  # the library raises nothing narrower
        raise CheckpointError(f"{file}: not a tokenizer ({e}); copy or save it again") from None
    absent = [t for t in SPECIAL_TOKENS if tokenizer.token_to_id(t) is None]
    if absent:
        raise ParamError(f"the tokenizer of {folder} lacks {', '.join(absent)}; is it a Qwen-VL one?")
    tokenizer.encode_special_tokens = True  # in text they are letters, as in prompts
    codec = get_codec(prompt.codec)
    for action in SAMPLES:
        text = codec.render(action, THOUGHT)
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        if back != text:
            raise ParamError(
                f"prompt.codec = {prompt.codec!r}: the tokenizer of {folder} cannot write it: {text!r} comes back as "
                f"{back!r}. Choose another codec or model.path."
            )

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    needed = tokens(codec.render(CLICK, THOUGHT if prompt.thought else "")) + 1
    if needed > prompt.max_new_tokens:
        raise ParamError(
            f"prompt.max_new_tokens = {prompt.max_new_tokens}: a click in codec {prompt.codec} takes {needed} tokens "
            f"with the tokenizer of {folder}, so every call would be cut. Raise it, or choose another codec."
        )
    config = read_json(folder / "config.json")
    limit = config.get("text_config", {}).get("max_position_embeddings")
    system = tokens(codec.system_prompt(prompt.system, prompt.thought)) + prompt.chunk_steps * prompt.max_new_tokens
    if isinstance(limit, int) and system >= limit:
        raise ParamError(
            f"prompt.system = {prompt.system!r}: with {prompt.chunk_steps} answers it takes {system} tokens, and the "
            f"model of {folder} reads {limit}. Choose a shorter system prompt, or lower prompt.chunk_steps."
        )
