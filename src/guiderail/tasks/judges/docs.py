"""Metrics over what text documents (docx, odt) hold: paragraphs, tables, pictures."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from rapidfuzz import fuzz

from guiderail.tasks.judges.safe import check_office, load_image, load_office, member, open_zip, parse_xml

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
ODT_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"


def paragraphs(path: str) -> list[str]:
    """Text of the paragraphs of a docx or odt. Raises Unreadable."""
    if path.endswith(".odt"):
        check_office(path)
        with open_zip(path) as archive:
            root = parse_xml(member(archive, "content.xml", path), path)
        tags = (f"{ODT_TEXT}p", f"{ODT_TEXT}h")
        return ["".join(p.itertext()) for p in root.iter(*tags)]
    return [p.text for p in load_office("docx", path).paragraphs]


_STORY = re.compile(r"word/(header|footer|footnotes|endnotes|comments)\d*\.xml")


def beside(path: str) -> list[str]:
    """What a docx shows or hides beside the paragraphs of its body: text in tables, boxes, headers, footers, notes,
    comments and content controls, text that was deleted or inserted as a tracked change, hidden text, and pictures
    and objects (by kind). Raises Unreadable."""
    body = load_office("docx", path).element.body
    texts = [body.iter(f"{W}t", f"{W}delText")]
    found = [e.tag for e in body.iter(f"{W}drawing", f"{W}pict", f"{W}object", f"{W}altChunk")]
    with open_zip(path) as archive:
        for name in filter(_STORY.fullmatch, archive.namelist()):
            texts.append(parse_xml(member(archive, name, path), path).iter(f"{W}t"))
    return found + sorted(t.text or "" for some in texts for t in some if not _plain(t, body))


def _plain(text: Any, body: Any) -> bool:
    """Whether a piece of text is a visible one of a paragraph of the body."""
    run = text.getparent()
    if text.tag != f"{W}t" or run.find(f"{W}rPr/{W}vanish") is not None:
        return False
    paragraph = run.getparent()
    if paragraph is not None and paragraph.tag == f"{W}hyperlink":
        paragraph = paragraph.getparent()
    return paragraph is not None and paragraph.tag == f"{W}p" and paragraph.getparent() is body


def compare_docx_files(
    result: str | None,
    expected: str | None,
    ignore_blanks: bool = True,
    ignore_case: bool = False,
    ignore_order: bool = False,
    content_only: bool = False,
    fuzzy_match: bool = False,
    delete_empty_lines: bool = False,
    reference_base_result: float = 0.0,
    nothing_else: bool = False,
) -> float:
    """1 when two documents have the same paragraphs.

    ignore_blanks: white space counts as one blank, paragraph ends too. ignore_order: in any order. delete_empty_lines:
    blank paragraphs are left out. content_only, fuzzy_match: similarity (Indel ratio) in place of equality, scaled so
    that `reference_base_result` and below is 0. nothing_else (ours): what is beside the paragraphs of a docx must be
    the same too (`beside`).
    """
    if result is None or expected is None or (nothing_else and beside(result) != beside(expected)):
        return 0.0
    one, two = paragraphs(result), paragraphs(expected)
    if delete_empty_lines:
        one, two = ([p for p in ps if p.strip()] for ps in (one, two))
    if ignore_order:
        one, two = sorted(one), sorted(two)
    if ignore_case:
        one, two = ([p.lower() for p in ps] for ps in (one, two))
    if content_only or ignore_blanks:
        a, b = (" ".join("\n".join(ps).split()) for ps in (one, two))
        if content_only or fuzzy_match:
            return max(0.0, (fuzz.ratio(a, b) / 100 - reference_base_result) / (1 - reference_base_result))
        return float(a == b)
    if fuzzy_match:
        if len(one) != len(two):
            return 0.0
        return sum(fuzz.ratio(x, y) for x, y in zip(one, two, strict=True)) / 100 / len(one) if one else 1.0
    return float(one == two)


def compare_docx_files_and_ignore_new_lines(
    result: str | None, expected: str | None, ignore_blanks: bool = True
) -> float:
    """`compare_docx_files` without blank paragraphs."""
    return compare_docx_files(result, expected, ignore_blanks=ignore_blanks, delete_empty_lines=True)


def compare_docx_tables(result: str | None, expected: str | None) -> float:
    """1 when two documents have the same tables: as many, of the same shape, with the same text in each cell."""
    if result is None or expected is None:
        return 0.0

    def tables(path: str) -> list[list[list[str]]]:
        return [[[c.text.strip() for c in row.cells] for row in t.rows] for t in load_office("docx", path).tables]

    return float(tables(result) == tables(expected))


def compare_docx_images(result: str | None, expected: str | None) -> float:
    """1 when two documents hold the same pictures (decoded pixels), in the order of their parts."""
    if result is None or expected is None:
        return 0.0

    def pictures(path: str) -> list[str]:
        document = load_office("docx", path)
        parts = [r.target_part for r in document.part.rels.values() if "image" in r.reltype and not r.is_external]
        found = []
        for part in parts:
            image = load_image(path, part.blob).convert("RGBA")
            found.append(hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest())
        return sorted(found)

    return float(pictures(result) == pictures(expected))


def compare_unique_train_records(result: str | None, expected: list[str] | str | None) -> float:
    """1 when the lines are the original's, without those whose train number (second field) came before, and as the
    expected file has them; the expected value is [gold, original], or gold alone."""
    if result is None or expected is None:
        return 0.0
    gold = expected if isinstance(expected, str) else expected[0]
    one, two = ([p.strip() for p in paragraphs(path) if p.strip()] for path in (result, gold))
    trains = [line.split(",")[1].strip() if "," in line else line for line in one]
    original = (
        {p.strip() for p in paragraphs(expected[1])} if isinstance(expected, list) and len(expected) > 1 else set(one)
    )
    same = len(one) == len(two) and {x.split(",")[1].strip() for x in two if "," in x} == set(trains)
    return float(len(set(trains)) == len(trains) and set(one) <= original and same)
