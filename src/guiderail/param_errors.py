"""Pydantic's errors in one line each: key = value: what is wrong, and what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel


def nearest(value: object, known: Iterable[object]) -> str:
    """One sentence: the names most like `value`, or all of them when none is."""
    names = sorted(map(str, known))
    if not names:
        return "There are none; add one."
    close = difflib.get_close_matches(str(value), names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(close)}?" if close else f"There are: {', '.join(names)}."


_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "list": "a list"}
_PLAIN = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "List should have at least 1 item after validation, not 0": "must hold at least one",
}
_TYPES |= {"dict": "a mapping", "model": "a mapping of keys to values", "tuple": "a list"}


def _section(model: type[BaseModel], loc: Iterable[int | str]) -> type[BaseModel]:
    """The model class that the keys `loc` lead to, as far as they lead to one."""
    for key in loc:
        field = model.model_fields.get(str(key))
        kind = field.annotation if field else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
    return model


def _shown(value: Any) -> str:
    """A value as it is told: whole, unless it is so long that what is wrong would be lost behind it."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:80]}... ({len(text)} signs)"


def explain(error: Mapping[str, Any], model: type[BaseModel], prefix: str = "") -> str:
    """One line for one pydantic error: key = value: what is wrong, and what would be right."""
    loc, kind, value = error["loc"], str(error["type"]), error.get("input")
    key = ".".join([*([prefix] if prefix else []), *map(str, loc)])
    owner = _section(model, loc[:-1])
    if kind == "extra_forbidden":
        return f"{key}: unknown key. {nearest(loc[-1], owner.model_fields)}"
    if kind == "value_error":
        text = str(error["ctx"]["error"])
        return f"{key} = {_shown(value)}: {text}." if key else text
    name = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    if name in _TYPES:
        text = f"must be {_TYPES[name]}"
        if name == "float" and isinstance(value, str) and re.fullmatch(r"[-+]?\d+e[-+]?\d+", value):
            text += f" (YAML reads {value} as text; write {value.replace('e', '.0e')})"
    elif kind == "literal_error":
        text = f"must be one of {error['ctx']['expected']}"
        near = difflib.get_close_matches(str(value), re.findall(r"'([^']+)'", text), n=1, cutoff=0.5)
        text += f" (did you mean {near[0]}?)" if near else ""
    elif kind == "string_pattern_mismatch":
        text = f"must match {error['ctx']['pattern']}"
    elif kind == "json_invalid":
        return f"holds text that cannot be written as JSON ({error['ctx']['error']})"
    else:
        text = str(error["msg"])
        for words, plain in _PLAIN.items():
            text = text.replace(words, plain)
    field = owner.model_fields.get(str(loc[-1])) if loc else None
    about = f" {field.description}" if field and field.description else ""
    return f"{key} = {_shown(value)}: {text}.{about}"
