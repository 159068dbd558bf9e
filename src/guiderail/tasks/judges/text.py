"""Metrics over text, lists and command output.

Each takes what its getters gave (a string, a path, a list; None when there was nothing) and returns a score in [0, 1].
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Mapping
from typing import Any

from guiderail.tasks.judges.safe import read_text

Rules = Mapping[str, Any]


def check_include_exclude(result: str | None, rules: Rules) -> float:
    """1 when `result` holds every text of rules["include"] and none of rules["exclude"]."""
    if result is None:
        return 0.0
    include, exclude = rules.get("include") or [], rules.get("exclude") or []
    return float(all(t in result for t in include) and not any(t in result for t in exclude))


def exact_match(result: Any, rules: Rules) -> float:
    """1 when `result` equals rules["expected"], to the last character."""
    return float(result == rules["expected"])


def literal_match(result: Any, expected: Any, type: str = "str", ignore_case: bool = False) -> float:
    """1 when both are the same text, or (type list) the same list of texts."""
    if type == "str":
        a, b = str(result), str(expected)
        return float(a.lower() == b.lower() if ignore_case else a == b)
    if not isinstance(result, list) or not isinstance(expected, list):
        return 0.0
    if ignore_case:
        return float([str(x).lower() for x in result] == [str(x).lower() for x in expected])
    return float([str(x) for x in result] == [str(x) for x in expected])


def fuzzy_match(result: str | None, rules: Rules) -> float:
    """Similarity of two texts (Indel ratio), 0 to 1."""
    from rapidfuzz import fuzz

    return 0.0 if result is None else fuzz.ratio(result, str(rules["expected"])) / 100


def match_in_list(result: Any, rules: Rules) -> float:
    """1 when `result` is one of the list rules["expected"]."""
    return float(result in rules["expected"])


def is_in_list(result: Any, rules: Rules) -> float:
    """1 when rules["expected"] is one of the list `result`."""
    return float(isinstance(result, list) and rules["expected"] in result)


def compare_text_file(
    result: str | None, expected: str | None, ignore_blanks: bool = False, ignore_case: bool = False
) -> float:
    """1 when two text files are equal; `ignore_blanks`: runs of white space count as one blank, those at the ends
    not."""
    if result is None or expected is None:
        return 0.0
    a, b = read_text(result), read_text(expected)
    if ignore_blanks:
        a, b = " ".join(a.split()), " ".join(b.split())
    return float(a.lower() == b.lower() if ignore_case else a == b)


def diff_text_file(result: str | None, expected: str | None) -> float:
    """Similarity of two files line by line (Ratcliff-Obershelp), 0 to 1."""
    if result is None or expected is None:
        return 0.0
    return difflib.SequenceMatcher(a=read_text(result).splitlines(), b=read_text(expected).splitlines()).ratio()


def compare_python_pure_text(result: str | None, expected: str | None) -> float:
    """1 when two programs are equal line by line, blank lines and blanks at line ends aside."""
    if result is None or expected is None:
        return 0.0
    a, b = ([line.rstrip() for line in read_text(p).splitlines() if line.strip()] for p in (result, expected))
    return float(a == b)


def compare_result_files(result: str | None, expected: str | None) -> float:
    """1 when two files hold the same number, or the same text but for blanks at the ends."""
    if result is None or expected is None:
        return 0.0
    a, b = read_text(result).strip(), read_text(expected).strip()
    try:
        return float(abs(float(a) - float(b)) < 1e-6)
    except ValueError:
        return float(a == b)


def file_contains(result: str | None, rules: Rules) -> float:
    """1 when the file holds every text of rules["expected"]."""
    if result is None:
        return 0.0
    text = read_text(result)
    return float(all(t in text for t in rules["expected"]))


def check_line_number(result: str | None, rules: Rules) -> float:
    """1 when as many lines of the file as rules["expected"] hold a time of day (hh:mm:ss)."""
    if result is None:
        return 0.0
    lines = [line for line in read_text(result).splitlines() if re.search(r"\b([01]\d|2[0-3]):[0-5]\d:[0-5]\d\b", line)]
    return float(len(lines) == int(rules["expected"]))


def check_list(result: str | None, rules: Rules) -> float:
    """1 when each pattern of rules["expect"] is found in some line of the file, none of rules["unexpect"] in any."""
    if result is None:
        return 0.0
    lines = read_text(result).splitlines()
    return float(
        all(any(re.search(p, line) for line in lines) for p in rules.get("expect", []))
        and not any(re.search(p, line) for p in rules.get("unexpect", []) for line in lines)
    )


def compare_csv(result: str | None, expected: Any, strict: bool = True, ignore_case: bool = False) -> float:
    """1 when two CSV files are equal, line by line (line ends and blanks around them aside); of several, the best.

    `strict` False compares cells without the blanks around them.
    """
    if result is None or expected is None:
        return 0.0
    if isinstance(expected, list):
        return max((compare_csv(result, e, strict, ignore_case) for e in expected if e is not None), default=0.0)

    def rows(path: str) -> list[Any]:
        text = read_text(path).lower() if ignore_case else read_text(path)
        if strict:
            return [line.strip() for line in text.strip().splitlines()]
        return [[c.strip() for c in row] for row in csv.reader(io.StringIO(text.strip()))]

    return float(rows(result) == rows(expected))


def check_csv(result: str | None, rules: Rules) -> float:
    """1 when each record of rules["expect"] agrees with some row of the CSV file, none of rules["unexpect"] with
    any."""
    if result is None:
        return 0.0
    rows = list(csv.DictReader(io.StringIO(read_text(result))))

    def fits(record: Rules) -> bool:
        return any(all(row.get(k) == v for k, v in record.items()) for row in rows)

    return float(all(map(fits, rules.get("expect", []))) and not any(map(fits, rules.get("unexpect", []))))


def is_in_vm_clickboard(config: Rules, clipboard: str | None) -> float:
    """1 when the text of the clipboard holds config["expected"] (all of them, when it is a list)."""
    wanted = config["expected"]
    return float(all(w in (clipboard or "") for w in (wanted if isinstance(wanted, list) else [wanted])))


def is_utc_0(result: str | None) -> float:
    """1 when `timedatectl status` says that the time zone is UTC or an offset of nought."""
    line = next((x for x in (result or "").splitlines() if "Time zone:" in x), "")
    return float(line.rstrip().endswith("+0000)"))


def check_moved_jpgs(tree: Mapping[str, Any] | None, rules: Rules) -> float:
    """1 when a folder (0 when it is none) holds exactly the files rules["expected"]."""
    if tree is None:
        return 0.0
    names = sorted(str(child["name"]) for child in tree.get("children", []))
    return float(names == sorted(rules["expected"]))


def check_gnome_favorite_apps(result: str | None, rules: Rules) -> float:
    """1 when gsettings' list of favourites is rules["expected"], in any order. The list is read, not evaluated."""
    return float(sorted(re.findall(r"'([^']*)'", result or "")) == sorted(rules["expected"]))


def is_extension_installed(result: str | None, rules: Rules) -> float:
    """1 when the output holds rules["expected"] (type contain), or does not (not_contain)."""
    kinds = {"contain": True, "not_contain": False}
    return float((rules["expected"] in (result or "")) is kinds[rules["type"]])


def compare_config(result: str | None, rules: Rules) -> float:
    """1 when the file's text is rules["expected"]."""
    return 0.0 if result is None else float(read_text(result) == rules["expected"])


def check_direct_json_object(result: Any, rules: Rules) -> float:
    """1 when an object has the values rules["expected"], or (expect_in_result) each holds its text.

    Of a list of acceptable values one must fit; with ignore_list_order lists compare without order.
    """
    if not isinstance(result, Mapping):
        return 0.0
    inside, unordered = rules.get("expect_in_result", False), rules.get("ignore_list_order", False)

    def fits(key: str, wanted: Any) -> bool:
        value = result.get(key)
        if inside and isinstance(wanted, list):
            return any(str(w) in str(value or "") for w in wanted)
        if inside:
            return value is not None and str(wanted) in str(value)
        if unordered and isinstance(value, list) and isinstance(wanted, list):
            return sorted(map(str, value)) == sorted(map(str, wanted))
        return bool(value == wanted)

    return float(all(fits(k, w) for k, w in rules["expected"].items()))
