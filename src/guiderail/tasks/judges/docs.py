"""Metrics over text documents (docx, odt)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rapidfuzz import fuzz

from guiderail.tasks.judges.safe import check_office, load_office, member, open_zip, parse_xml

Rules = Mapping[str, Any]
W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_ODT_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_ODT_FO = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
_ODT_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"


def paragraphs(path: str) -> list[str]:
    """Text of the paragraphs of a docx or odt. Raises Unreadable."""
    if path.endswith(".odt"):
        check_office(path)
        with open_zip(path) as archive:
            root = parse_xml(member(archive, "content.xml", path), path)
        tags = (f"{_ODT_TEXT}p", f"{_ODT_TEXT}h")
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
        import io

        from guiderail.tasks.judges.safe import load_image

        document = load_office("docx", path)
        parts = [r.target_part for r in document.part.rels.values() if "image" in r.reltype and not r.is_external]
        found = []
        for part in parts:
            image = load_image(io.BytesIO(part.blob)).convert("RGBA")  # type: ignore[arg-type]
            found.append(hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest())
        return sorted(found)

    return float(pictures(result) == pictures(expected))


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
    `index`) and the rest; then 1 minus the mean distance of the right tab stops from the expected ones, as a fraction
    of the text's width.
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
        stops, wanted = ([t for t in x.paragraph_format.tab_stops if t.alignment != 0 or x is q] for x in (p, q))
        if len(stops) != len(wanted):
            return 0.0
        off += sum(abs(s.position - t.position) for s, t in zip(stops, wanted, strict=True)) / width
    return max(0.0, 1 - off / len(a))


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
    used = {e.get(f"{_ODT_TEXT}style-name") for e in root.iter(f"{_ODT_TEXT}span", f"{_ODT_TEXT}p")}
    return float(not yellow & used)
