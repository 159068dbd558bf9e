"""Metrics over how text documents (docx, odt) look: fonts, alignment, spacing, tab stops, page breaks, colours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from guiderail.tasks.judges.docs import ODT_TEXT, W, compare_docx_files
from guiderail.tasks.judges.safe import load_office, member, open_zip, parse_xml

Rules = Mapping[str, Any]
_ODT_FO = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
_ODT_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"


def compare_line_spacing(result: str | None, expected: str | None) -> float:
    """1 when two documents have the same text and the same line spacing in every paragraph."""
    if result is None or expected is None or not compare_docx_files(result, expected):
        return 0.0
    one, two = (
        [p.paragraph_format.line_spacing for p in load_office("docx", path).paragraphs] for path in (result, expected)
    )
    return float(one == two)


def compare_font_names(result: str | None, rules: Rules) -> float:
    """1 when every run of text has the font rules["font_name"]."""
    if result is None:
        return 0.0
    runs = [r for p in load_office("docx", result).paragraphs for r in p.runs]
    return float(bool(runs) and all(r.font.name == rules["font_name"] for r in runs))


def _runs(path: str) -> Iterable[Any]:
    return (r for p in load_office("docx", path).paragraphs for r in p.runs)


def compare_subscript_contains(result: str | None, expected: str | None) -> float:
    """1 when some text is a subscript in both documents, at the same paragraph."""
    if result is None or expected is None:
        return 0.0
    pairs = zip(load_office("docx", result).paragraphs, load_office("docx", expected).paragraphs, strict=False)

    def low(paragraph: Any) -> set[str]:
        return {r.text for r in paragraph.runs if r.font.subscript}

    return float(any(low(a) & low(b) for a, b in pairs))


def has_page_numbers_in_footers(result: str | None) -> float:
    """1 when the footer of every section holds a page number (a field, or a digit)."""
    if result is None:
        return 0.0
    sections = load_office("docx", result).sections

    def numbered(footer: Any) -> bool:
        xml = footer._element
        fields = [t.text or "" for t in xml.iter(f"{W}instrText")] + [
            f.get(f"{W}instr", "") for f in xml.iter(f"{W}fldSimple")
        ]
        return any("PAGE" in f for f in fields) or any(c.isdigit() for p in footer.paragraphs for c in p.text)

    return float(bool(sections) and all(numbered(s.footer) for s in sections))


def is_first_line_centered(result: str | None, only: bool = False) -> float:
    """1 when the first paragraph is centred, by itself or by its style. only (ours): the first that has text, and no
    other that has."""
    if result is None:
        return 0.0
    found = [p for p in load_office("docx", result).paragraphs if p.text.strip() or not only]
    centred = [_alignment(p) == "center" for p in (found if only else found[:1])]
    return float(bool(centred) and centred[0] and not any(centred[1:]))


def _alignment(paragraph: Any) -> str:
    """Alignment of a paragraph as the file has it (what python-docx has no name for too), from its style where it has
    none of its own."""
    holder, seen = paragraph._p, 0
    style = paragraph.style
    while True:
        jc = holder.find(f"{W}pPr/{W}jc")
        if jc is not None:
            return str(jc.get(f"{W}val"))
        if style is None or seen > 20:  # styles of a made-up file may go round in circles
            return ""
        holder, style, seen = style.element, style.base_style, seen + 1


def contains_page_break(result: str | None, rules: Rules | None = None) -> float:
    """1 when the document has page breaks: rules["page_break_count"] of them, or any number."""
    if result is None:
        return 0.0
    body = load_office("docx", result).element.body
    found = sum(b.get(f"{W}type") == "page" for b in body.iter(f"{W}br"))
    wanted = (rules or {}).get("page_break_count")
    return float(found > 0 if wanted is None else found == wanted)


def check_tabstops(
    result: str | None, expected: str | None, word_number_split_by_tabstop: int = 3, index: int = 0
) -> float:
    """How well each paragraph is split by one tab after so many words, set right at the far side.

    0 unless both documents have as many filled paragraphs, and each is cut at the tab into that many words (part
    `index`) and the rest, and has as many tab stops of the same kinds (stops that are cleared, and those at the left
    edge, are none); then 1 minus the mean distance of the stops from the expected ones, as a fraction of the text's
    width.
    """
    if result is None or expected is None:
        return 0.0
    one, two = load_office("docx", result), load_office("docx", expected)
    a, b = ([p for p in d.paragraphs if p.text.strip()] for d in (one, two))
    if len(a) != len(b) or not a:
        return 0.0
    for p in a:
        parts = p.text.split("\t")
        if (
            len(parts) <= index
            or len(list(filter(None, re.split(r"\s", parts[index])))) != word_number_split_by_tabstop
        ):
            return 0.0
    section = two.sections[0]
    width = section.page_width - section.left_margin - section.right_margin
    off = 0.0
    for p, q in zip(a, b, strict=True):
        stops, wanted = ([t for t in x.paragraph_format.tab_stops if _stops(t)] for x in (p, q))
        if [t.alignment for t in stops] != [t.alignment for t in wanted]:
            return 0.0
        off += sum(abs(s.position - t.position) for s, t in zip(stops, wanted, strict=True)) / width
    return max(0.0, 1 - off / len(a))


def _stops(tab: Any) -> bool:
    """Whether a tab stop is one: not cleared, and not the one at the left edge that every paragraph has."""
    from docx.enum.text import WD_TAB_ALIGNMENT

    edge = tab.alignment == WD_TAB_ALIGNMENT.LEFT and tab.position == 0
    return not (edge or tab.alignment == WD_TAB_ALIGNMENT.CLEAR)


def evaluate_strike_through_last_paragraph(result: str | None, expected: str | None) -> float:
    """1 when the text is unchanged and every run of the last paragraph is struck through."""
    if result is None or expected is None or not compare_docx_files(result, expected):
        return 0.0
    runs = [r for r in load_office("docx", result).paragraphs[-1].runs if r.text.strip()]
    return float(bool(runs) and all(r.font.strike for r in runs))


def evaluate_colored_words_in_tables(result: str | None, expected: str | None) -> float:
    """1 when the text is unchanged and in every table words that begin with a vowel are red, the others blue."""
    if result is None or expected is None or not compare_docx_files(result, expected):
        return 0.0
    for table in load_office("docx", result).tables:
        for row in table.rows:
            for cell in row.cells:
                for p in cell.paragraphs:
                    for run in p.runs:
                        word = run.text.strip()
                        if word and not _coloured(run, word[0].lower() in "aeiou"):
                            return 0.0
    return 1.0


def _coloured(run: Any, red: bool) -> bool:
    """Whether a run is nearly red (or blue): within a seventh of the cube's diagonal."""
    rgb = run.font.color.rgb if run.font.color is not None else None
    if rgb is None:
        return False
    wanted = (255, 0, 0) if red else (0, 0, 255)
    return bool(sum((a - b) ** 2 for a, b in zip(rgb, wanted, strict=True)) ** 0.5 < 63)


def check_italic_font_size_14(result: str | None, expected: str | None) -> float:
    """1 when the text is unchanged and all text in italics is of 14 points."""
    if result is None or expected is None or not compare_docx_files(result, expected):
        return 0.0
    return float(
        all(r.font.size is not None and r.font.size.pt == 14 for r in _runs(result) if r.italic and r.text.strip())
    )


def check_highlighted_words(result: str | None, expected: str | None) -> float:
    """1 when the text of an odt is unchanged and no text of it lies on yellow."""
    if result is None or expected is None or not compare_docx_files(result, expected):
        return 0.0
    with open_zip(result) as archive:
        root = parse_xml(member(archive, "content.xml", result), result)
    yellow = {
        s.get(f"{_ODT_STYLE}name")
        for s in root.iter(f"{_ODT_STYLE}style")
        for p in s.iter(f"{_ODT_STYLE}text-properties")
        if (p.get(f"{_ODT_FO}background-color") or "").lower() in ("#ffff00", "yellow")
    }
    used = {e.get(f"{ODT_TEXT}style-name") for e in root.iter(f"{ODT_TEXT}span", f"{ODT_TEXT}p")}
    return float(not yellow & used)
