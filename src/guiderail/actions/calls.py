r"""Reading and writing one call with named arguments, `name(arg=value, ...)`, for the codecs whose models write calls.

    call  := name "(" [arg "=" value ("," arg "=" value)*] ")"     names in any case, white space free
    value := number | "string" | 'string'                          escapes: \\ \" \' \n \t \uXXXX

Guarantees: one call is the whole text; arguments are named, known, given once, of their type; a string is data. What
is wrong is an Unreadable with one sentence. Knows no action: a codec brings its table of calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from guiderail.actions.text import Unreadable, clip, escape, well_formed

Types = Mapping[str, type]
_HEAD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\(\s*")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*")
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"|' r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_STRING_END = re.compile(r"\s*(?:\)\s*\Z|,\s*[A-Za-z_][A-Za-z0-9_]*\s*=)")
_WORD = re.compile(r"[^\s,()\"']+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_PLAIN = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t"}


@dataclass(frozen=True)
class Strings:
    """How string values are read.

    escapes: the one-character escapes; `\\uXXXX` is always one. Any other escape is refused, or, when `loose`, kept as
    written. loose: also, a quote in the middle of a string (`'don't'`) is part of it: a string ends where the call or
    the next named argument follows.
    """

    escapes: Mapping[str, str]
    loose: bool = False


STRICT = Strings(_PLAIN)
LOOSE = Strings(_PLAIN, loose=True)


def quoted(text: str, quote: str = '"') -> str:
    """`text` as a string literal on one line; read back by `read_call`, by JSON-like readers and by Python."""
    return quote + escape(text).replace(quote, "\\" + quote) + quote


def read_call(
    text: str,
    table: Mapping[str, tuple[Types, Types]],
    fold: Callable[[str], str] = str.upper,
    strings: Strings = STRICT,
) -> tuple[str, dict[str, Any]]:
    """Read `text`, all of it, as one call: (name, arguments).

    table: name -> (required, optional) argument types (str, float, int), names as `fold` writes them.
    Raises Unreadable.
    """
    m = _HEAD.match(text)
    if not m:
        raise Unreadable(
            f"No call found: expected {fold('keyword')}(...), got {clip(text.strip())}." if text.strip() else "Empty."
        )
    name = fold(m[1])
    if name not in table:
        raise Unreadable(f"Unknown action {clip(m[1])}; known are {', '.join(table)}.")
    required, optional = table[name]
    found, end = _arguments(text, m.end(), name, {**required, **optional}, strings)
    if missing := [argument for argument in required if argument not in found]:
        raise Unreadable(f"{name} lacks the argument {missing[0]}.")
    if rest := text[end:].strip():
        again = _HEAD.match(rest.lstrip(";,"))
        what = "There are several calls; write exactly one" if again else f"Text after the call: {clip(rest)}"
        raise Unreadable(f"{what}.")
    return name, found


def _arguments(text: str, at: int, call: str, types: Types, strings: Strings) -> tuple[dict[str, Any], int]:
    """Read `name=value, ...)` from `at`; returns the values and the place after the closing parenthesis."""
    found: dict[str, Any] = {}
    if text.startswith(")", at):
        return found, at + 1
    while True:
        m = _NAME.match(text, at)
        if not m:
            raise Unreadable(f"{call}: expected name=value, got {clip(text[at:]) if text[at:] else 'the end'}.")
        name = m[1].lower()
        if name not in types:
            raise Unreadable(f"{call} has no argument {clip(m[1])}.")
        if name in found:
            raise Unreadable(f"{call}: argument {name} is given twice.")
        where = f"{call}: {name}"
        if types[name] is str:
            found[name], at = _string(text, m.end(), where, strings)
        else:
            found[name], at = _number(text, m.end(), where, types[name])
        rest = text[at:].lstrip()
        at = len(text) - len(rest)
        if rest.startswith(")"):
            return found, at + 1
        if not rest.startswith(","):
            raise Unreadable(f"{call}: expected , or ) after {name}, got {clip(rest) if rest else 'the end'}.")
        at = len(text) - len(rest[1:].lstrip())


def _string(text: str, at: int, where: str, strings: Strings) -> tuple[str, int]:
    """Read a string at `at`; returns it and the place after it."""
    m = _STRING.match(text, at)
    if m and not (strings.loose and not _STRING_END.match(text, m.end())):
        body, end = (m[1] if m[1] is not None else m[2]), m.end()
    else:
        body, end = _loose_string(text, at) if strings.loose else (None, at)
    if body is None:
        raise Unreadable(f"{where} must be a quoted string, got {clip(text[at:])}.")
    return well_formed(_ESCAPE.sub(lambda e: _unescaped(e, where, strings), body)), end


def _loose_string(text: str, at: int) -> tuple[str | None, int]:
    """A string whose own quotes are not escaped: (body, place after it), or (None, at)."""
    quote = text[at : at + 1]
    if quote in ("'", '"'):
        for m in re.finditer(quote, text[at + 1 :]):
            end = at + 1 + m.start()
            if _STRING_END.match(text, end + 1):
                return text[at + 1 : end], end + 1
    return None, at


def _unescaped(e: re.Match[str], where: str, strings: Strings) -> str:
    code = e[1]
    if code in strings.escapes:
        return strings.escapes[code]
    if len(code) == 5:
        return chr(int(code[1:], 16))
    if strings.loose:
        return e[0]
    raise Unreadable(f"{where} has the unknown escape {clip(chr(92) + code)}.")


def _number(text: str, at: int, where: str, kind: type) -> tuple[float | int, int]:
    """Read a number of `kind` (float, int) at `at`; returns it and the place after it."""
    m = _WORD.match(text, at)
    word = m[0] if m else ""
    if _NOT_FINITE.fullmatch(word):
        raise Unreadable(f"{where} is not a finite number.")
    if not m or not _NUMBER.fullmatch(word):
        raise Unreadable(f"{where} must be a number, got {clip(text[at:])}.")
    value = float(word)
    if kind is int:
        if not value.is_integer():
            raise Unreadable(f"{where} must be a whole number, got {clip(word)}.")
        return int(value), m.end()
    return value, m.end()
