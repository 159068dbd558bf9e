"""How a rule compares a value: `{"method": "approx:0.1", "ref": 3}`.

Guarantees: an unknown method is a ValueError (the judge's fault), never a wrong answer; patterns and code of a rule
come
from the task file, values from the guest, and neither is evaluated.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def holds(value: Any, rule: Mapping[str, Any]) -> bool:
    """Whether `value` fits `rule`. Raises ValueError for a method that does not exist."""
    method, ref = str(rule["method"]), rule.get("ref")
    if method in _ORDER:
        try:
            return bool(_ORDER[method](value, ref))
        except TypeError:  # text against a number
            return False
    if method.startswith("approx"):
        tolerance = float(method.partition(":")[2] or 1e-6)
        try:
            return abs(float(value) - float(ref)) <= tolerance  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False
    if method.startswith("re"):
        flags = 0
        for flag in filter(None, method.partition(".")[2].split(".")):
            flags |= re.RegexFlag[flag.upper()]
        return re.search(str(ref), "" if value is None else str(value), flags) is not None
    if method == "in":
        return value in ref  # type: ignore[operator]
    if method == "not_in":
        return value not in ref  # type: ignore[operator]
    if method.startswith("str_list_eq"):
        return _strings(value, method) == list(ref)  # type: ignore[arg-type]
    if method.startswith("str_set_eq"):
        return set(_strings(value, method)) == set(ref)  # type: ignore[arg-type]
    if method == "spreadsheet_range":
        return str(value).upper() in (str(r).upper() for r in (ref if isinstance(ref, list) else [ref]))
    if method.startswith("range.") and isinstance(value, int | float) and isinstance(ref, list):
        low, high = ref
        bounds = method.removeprefix("range.")
        left, right = bounds[:1], bounds[1:]
        return bool(
            (low < value or (left == "[" and low == value)) and (value < high or (right == "]" and value == high))
        )
    raise ValueError(f"rule method {method!r}: no such method")


def _strings(value: object, method: str) -> list[str]:
    """A list written as text, e.g. `"Pass,Fail"` of a data validation; a list stays one."""
    if isinstance(value, list | tuple):
        return [str(v) for v in value]
    return [part.strip() for part in str(value).strip('"').split(method.partition(":")[2] or ",")]
