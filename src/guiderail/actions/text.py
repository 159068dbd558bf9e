"""Text helpers shared by the codecs: one-line thoughts, escapes, surrogates, `<think>` blocks.

Guarantees: `read_thought(write_thought(t)) == well_formed(t)` for every string; a written thought is one line without
control characters, lone surrogates, outer white space, or anything a Qwen tokenizer could read as a special token.
Knows no action format.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_HEX4 = r"u[0-9a-fA-F]{4}"
_ESCAPE = re.compile(rf"\\(\\|n|t|{_HEX4})")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MARKUP = re.compile(r"<(?=\||/?tool_call)")
_OUTER_SPACE = re.compile(r"\A\s|\s\Z")
_SHORT = {"\n": r"\n", "\t": r"\t"}
_THINK = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL | re.IGNORECASE)
_THINK_END = re.compile(r"<(?=/think>)", re.IGNORECASE)


class Unreadable(Exception):
    """Internal to codecs: carries the one-sentence reason of a ParseFailure. Never leaves `parse`."""


def u4(char: str) -> str:
    r"""`\uXXXX` for a character of the basic plane."""
    return f"\\u{ord(char):04x}"


def well_formed(text: str) -> str:
    """Join surrogate pairs into the character they stand for; lone surrogates stay. Idempotent."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def escape(text: str) -> str:
    r"""Write `text` on one line: backslash, controls and surrogates become `\\ \n \t \uXXXX`, so does the `<` of `<|`
    and of tool-call tags, so that no rendered text ever contains a special token."""
    text = text.replace("\\", r"\\")
    text = _UNSAFE.sub(lambda m: _SHORT.get(m[0]) or u4(m[0]), text)
    return _MARKUP.sub(r"\\u003c", text)


def _plain(match: re.Match[str]) -> str:
    code = match[1]
    return {"\\": "\\", "n": "\n", "t": "\t"}.get(code) or chr(int(code[1:], 16))


def unescape(text: str) -> str:
    """Undo `escape`; an escape it does not know stays as written."""
    return well_formed(_ESCAPE.sub(_plain, text))


def write_thought(thought: str, guard: Callable[[str], str] = lambda line: line) -> str:
    """The thought as one line; `guard` may escape further what the codec's own parser would misread."""
    return _OUTER_SPACE.sub(lambda m: u4(m[0]), guard(escape(thought)))


def read_thought(line: str) -> str:
    """Inverse of `write_thought`; outer white space of the line is not part of the thought."""
    return unescape(line.strip())


def take_think(text: str) -> tuple[str, str]:
    """Split a leading `<think>...</think>` block off: (its stripped content or "", the rest)."""
    m = _THINK.match(text)
    return (m[1].strip(), text[m.end() :]) if m else ("", text)


def write_think(thought: str, tag: str = "think") -> str:
    """A block that no thought can end, the tag in any case; `take_think` and then `read_thought` undo it."""
    content = write_thought(thought, lambda line: _THINK_END.sub(r"\\u003c", line))
    return f"<{tag}>\n{content}\n</{tag}>"


def clip(text: str, limit: int = 40) -> str:
    """A printable, short quotation of model text for reasons and logs."""
    quoted = ascii(text[: limit + 1])
    return quoted if len(quoted) <= limit + 2 else quoted[:limit] + "..."
