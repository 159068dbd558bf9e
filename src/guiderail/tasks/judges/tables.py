"""compare_table: spreadsheets against each other and against rules.

Sheets are named as upstream does: RI0, RNSheet1 = the result's by index or name, EI0, ENSheet1 = the expected one's;
a bare number means the result's. Values are those the application stored (formulas are not evaluated here). Numbers
are equal when they agree to four decimals; blank rows and columns at the end do not count.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz

from guiderail.tasks.judges import table_parts
from guiderail.tasks.judges.methods import holds
from guiderail.tasks.judges.safe import load_office, read_text

Rules = Mapping[str, Any]
Grid = dict[tuple[int, int], Any]
DECIMALS = 4
FUZZY_THRESHOLD = 85.0


class Books:
    """The two workbooks of a comparison, as values and as formulas."""

    def __init__(self, result: str, expected: str | None) -> None:
        self.paths = {"R": result, "E": expected}
        self._loaded: dict[tuple[str, bool], Any] = {}

    def book(self, side: str, values: bool = True) -> Any:
        """The workbook of a side (R, E); `values`: stored values in place of formulas."""
        if (side, values) not in self._loaded:
            path = self.paths[side]
            if path is None:
                raise ValueError("compare_table: a rule wants the expected file and there is none")
            self._loaded[side, values] = load_office("xlsx", path, data_only=values)
        return self._loaded[side, values]

    def find(self, name: int | str) -> tuple[str, str]:
        """(side, sheet name) of a reference; the name is "" when there is no such sheet."""
        if isinstance(name, int):
            name = f"RI{name}"
        side, kind, rest = name[0], name[1], name[2:]
        if side not in self.paths or kind not in "IN":
            raise ValueError(f"compare_table: sheet {name!r}: must be like RI0, RNSheet1, EI0, ENSheet1")
        names = self.book(side).sheetnames
        if kind == "N":
            return side, rest if rest in names else ""
        return side, names[int(rest)] if int(rest) < len(names) else ""

    def sheet(self, name: int | str, values: bool = True) -> Any:
        """The worksheet of a reference, None when there is none."""
        side, title = self.find(name)
        return self.book(side, values)[title] if title else None

    def printed(self, name: int | str) -> list[str] | None:
        """Lines of the sheet as exported to CSV beside the workbook (book-sheet.csv; book.csv for a single one)."""
        side, title = self.find(name)
        path = Path(str(self.paths[side]))
        for beside in (path.with_name(f"{path.stem}-{title}.csv"), path.with_suffix(".csv")):
            if beside.is_file():
                return [line.rstrip() for line in read_text(beside).rstrip().splitlines()]
        return None


def compare_table(result: str | None, expected: Any = None, rules: Iterable[Rules] = ()) -> float:
    """1 when every rule holds. `expected` may be several files: then one must fit."""
    if result is None:
        return 0.0
    if isinstance(expected, list):
        return max(compare_table(result, e, list(rules)) for e in expected)
    books = Books(result, expected)
    books.book("R")
    return float(all(_holds(books, rule) for rule in rules))


def _holds(books: Books, rule: Rules) -> bool:
    kind = rule["type"]
    if kind == "sheet_name":
        return bool(books.book("R").sheetnames == books.book("E").sheetnames)
    if kind == "sheet_data":
        return _same_data(books, rule)
    if kind == "sheet_print":
        pair = [books.printed(rule[k]) for k in ("sheet_idx0", "sheet_idx1")]
        if None in pair:
            return False
        one, two = ([x.lower() for x in lines or []] if rule.get("ignore_case") else lines for lines in pair)
        return one == two
    if kind == "sheet_fuzzy":
        return _fuzzy(books, rule)
    if kind == "check_cell":
        sheet = books.sheet(rule["sheet_idx"])
        return sheet is not None and all(
            holds(table_parts.cell(sheet, rule["coordinate"], name), wanted) for name, wanted in rule["props"].items()
        )
    if kind in ("zoom", "data_validation", "row_props_of"):
        sheet = books.sheet(rule["sheet_idx"], values=False)
        if sheet is None:
            return False
        if kind == "zoom":
            return holds(sheet.sheet_view.zoomScale or 100, rule)
        return table_parts.validations_fit(sheet, rule["dv_props"])
    reader = table_parts.READERS.get(kind)
    if reader is None:
        raise ValueError(f"compare_table: rule {kind!r}: no such rule")
    one, two = (books.sheet(rule[k], values=False) for k in ("sheet_idx0", "sheet_idx1"))
    return one is not None and two is not None and reader(one, rule) == reader(two, rule)


def _same_data(books: Books, rule: Rules) -> bool:
    one, two = (books.sheet(rule[k]) for k in ("sheet_idx0", "sheet_idx1"))
    if one is None or two is None:
        return False
    lower = bool(rule.get("ignore_case"))
    return grid(one, lower) == grid(two, lower)


def grid(sheet: Any, lower: bool = False) -> Grid:
    """(row, column) -> value, made comparable, of the cells that have one. Takes time for what is stored, not for the
    area it spans: one cell at the far end of a sheet makes 17 billion blank ones, which are not looked at."""
    values = {place: plain(found.value, lower) for place, found in sheet._cells.items()}
    return {place: value for place, value in values.items() if value is not None}


def plain(value: Any, lower: bool = False) -> Any:
    """A value that compares as people would: rounded numbers, whole numbers as such, dates as text, "" as nothing."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        try:
            return round(float(value), DECIMALS) + 0.0
        except OverflowError:  # a whole number of hundreds of digits
            return math.inf if value > 0 else -math.inf
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat().removesuffix("T00:00:00")
    text = str(value)
    return (text.lower() if lower else text) or None


def _fuzzy(books: Books, rule: Rules) -> bool:
    one, two = (books.sheet(rule[k]) for k in ("sheet_idx0", "sheet_idx1"))
    if one is None or two is None:
        return False
    for part in rule["rules"]:
        for area in part["range"]:
            for a, b in zip(_cells(one, area), _cells(two, area), strict=True):
                if not _alike(_trimmed(a, part), _trimmed(b, part), part):
                    return False
    return True


def _cells(sheet: Any, area: str) -> list[Any]:
    found = sheet[area]
    rows = found if isinstance(found, tuple) else ((found,),)
    return [c.value for row in rows for c in (row if isinstance(row, tuple) else (row,))]


def _trimmed(value: Any, part: Rules) -> str:
    text = "" if value is None else str(plain(value))
    for a, b in part.get("normalization", []):
        text = text.replace(a, b)
    text = text.lstrip(part["trim_leadings"]) if "trim_leadings" in part else text
    text = text.rstrip(part["trim_trailings"]) if "trim_trailings" in part else text
    text = "".join(c for c in text if c not in part.get("ignore_chars", ""))
    return text.lower() if part.get("ignore_case") else text


def _alike(a: str, b: str, part: Rules) -> bool:
    match part["type"]:
        case "exact_match":
            return a == b
        case "includes":
            return b in a
        case "included_by":
            return a in b
        case "fuzzy_match":
            return fuzz.ratio(a, b) >= float(part.get("threshold", FUZZY_THRESHOLD))
        case other:
            raise ValueError(f"compare_table: sheet_fuzzy of type {other!r}: no such type")


def compare_conference_city_in_order(result: str | None, rules: Rules) -> float:
    """1 when column C below the heading names the cities rules["expected"] (one, or one of several) in order."""
    if result is None:
        return 0.0
    sheet = load_office("xlsx", result, data_only=True).active
    found = [str(sheet.cell(i + 2, 3).value or "") for i in range(len(rules["expected"]))]
    wanted = [w if isinstance(w, list) else [w] for w in rules["expected"]]
    return float(all(any(w in cell for w in options) for cell, options in zip(found, wanted, strict=True)))
