"""Reading and writing actions as JSON inside model text, for the codecs whose models write JSON.

Guarantees: strict JSON (no duplicate key, no NaN, no text after the object unless the caller takes it); code fences
and tags are found by the JSON's own end, never by what a string holds; values of a wrong type are a ValueError that
names them; what `dumps` writes holds no lone surrogate and nothing that reads like a special token or a tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from guiderail.actions.bounds import read_chord
from guiderail.actions.text import Unreadable, clip, u4

Fields = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKUP = re.compile(r"<(?=\||/?tool_call)")
_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\r?\n?")


def quote(value: Any) -> str:
    """A short quotation of any JSON value; numbers of any length."""
    try:
        return clip(value if isinstance(value, str) else json.dumps(value))
    except RecursionError:
        return "a deep nest"


def dumps(value: Any, compact: bool = False) -> str:
    """JSON on one line, unicode as it is."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":") if compact else None)
    return _MARKUP.sub(r"\\u003c", _SURROGATE.sub(lambda m: u4(m[0]), text))


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"key {clip(name)} is given twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a finite number")


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _decode(text: str, what: str) -> tuple[Any, str]:
    """The JSON value that `text` starts with, and the text after it. Raises Unreadable."""
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError as e:
        raise Unreadable(f"The {what} is not valid JSON: {e}.") from None
    except RecursionError:
        raise Unreadable(f"The {what} is nested too deeply.") from None
    return value, text[end:].lstrip()


def take_block(text: str, tag: str, what: str, ignore_case: bool = False) -> tuple[str, Any]:
    """(text before, JSON value) of the one `<tag>{...}</tag>`; a code fence may stand inside the tags.

    Raises Unreadable when it is missing, not closed right after its JSON, or not the last thing in the text.
    """
    opened = re.search(f"<{tag}>", text, re.IGNORECASE if ignore_case else 0)
    if not opened:
        raise Unreadable(f"There is no <{tag}> block.")
    rest = text[opened.end() :].lstrip()
    fence = _FENCE.match(rest)
    value, rest = _decode(rest[fence.end() :].lstrip() if fence else rest, what)
    if fence and rest.startswith("```"):
        rest = rest[3:].lstrip()
    close = re.compile(f"</{tag}>", re.IGNORECASE if ignore_case else 0).match(rest)
    if not close:
        raise Unreadable(f"The {what} is not closed by </{tag}> right after its JSON object.")
    if rest := rest[close.end() :].strip():
        if rest.lower().startswith(f"<{tag}>".lower()):
            raise Unreadable(f"There are several {what}s; write exactly one.")
        raise Unreadable(f"Text after it: {clip(rest)}.")
    return text[: opened.start()], value


def take_object(text: str, what: str) -> tuple[str, Any]:
    """(text before, JSON value) of the one object that ends `text`, bare or in a code fence. Raises Unreadable."""
    before, brace, rest = text.partition("{")
    if not brace:
        raise Unreadable(f"There is no {what}: expected a JSON object.")
    fence = re.search(_FENCE.pattern + r"\s*\Z", before)
    value, rest = _decode("{" + rest, what)
    if fence:
        before = before[: fence.start()]
        if not rest.startswith("```"):
            raise Unreadable(f"The code fence is not closed right after the {what}.")
        rest = rest[3:].lstrip()
    if rest:
        several = rest.startswith(("{", "```", ",", "["))
        raise Unreadable(
            f"There are several {what}s; write exactly one." if several else f"Text after it: {clip(rest)}."
        )
    return before, value


def take_fields(
    value: Any, key: str, table: Fields, fold: Callable[[str], str] = str, what: str = "The action"
) -> tuple[str, dict[str, Any]]:
    """Check an action object: (its name under `key`, its other arguments).

    table: name -> (required, optional) argument names, names as `fold` writes them. Raises Unreadable.
    """
    if not isinstance(value, dict) or not isinstance(value.get(key), str):
        raise Unreadable(f'{what} must be an object with a string "{key}".')
    name = fold(value[key])
    if name not in table:
        raise Unreadable(f"Unknown action {clip(value[key])}; known are {', '.join(table)}.")
    required, optional = table[name]
    for argument in required:
        if argument not in value:
            raise Unreadable(f"{name} lacks the argument {argument}.")
    for argument in value:
        if argument not in (key, *required, *optional):
            raise Unreadable(f"{name} has no argument {clip(argument)}.")
    return name, {k: v for k, v in value.items() if k != key}


def number(value: Any, name: str) -> float:
    """A JSON number; ValueError naming it otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {quote(value)}")
    return value


def whole(value: Any, name: str) -> int:
    """A whole JSON number (3 or 3.0); ValueError naming it otherwise."""
    value = number(value, name)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def string(value: Any, name: str) -> str:
    """A JSON string; ValueError naming it otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {quote(value)}")
    return value


def pair(value: Any, name: str) -> tuple[float, float]:
    """A list of two numbers; ValueError naming it otherwise."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{name} must be [x, y], got {quote(value)}")
    return number(value[0], name), number(value[1], name)


def keys(value: Any) -> tuple[str, ...]:
    """A chord: a list of key names or one string (`ctrl+a`); ValueError otherwise."""
    if isinstance(value, str):
        return read_chord(value)
    if not isinstance(value, list) or not all(isinstance(k, str) for k in value):
        raise ValueError(f"keys must be a list of strings, got {quote(value)}")
    return tuple(value)
