"""Metrics over documents made here with the libraries that write them: tables, texts, slides, archives, PDF."""

import io
import tarfile
import zipfile

import docx
import openpyxl
import pptx
import pytest
from docx.enum.text import WD_TAB_ALIGNMENT as Tab
from docx.shared import Inches, Pt, RGBColor
from openpyxl.chart import BarChart, LineChart, Reference
from openpyxl.styles import Font, PatternFill
from openpyxl.worksheet.datavalidation import DataValidation
from PIL import Image
from pypdf import PdfWriter

from guiderail.tasks.judges import archives, doc_looks, docs, pdf, slides, tables
from guiderail.tasks.judges.safe import Unreadable

DATA = {"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}


def book(path, rows, change=lambda book, sheet: None, name="Sheet1"):
    wb = openpyxl.Workbook()
    sheet = wb.active
    sheet.title = name
    for row in rows:
        sheet.append(row)
    change(wb, sheet)
    wb.save(path)
    return str(path)


def test_table_data(tmp_path):
    rows = [["name", "n"], ["a", 1], ["b", 2.00001]]
    a = book(tmp_path / "a.xlsx", rows)
    assert tables.compare_table(a, book(tmp_path / "b.xlsx", [["name", "n"], ["a", 1.0], ["b", 2]]), rules=[DATA]) == 1
    assert (
        tables.compare_table(a, book(tmp_path / "c.xlsx", [["name", "n"], ["a", 1], ["b", 2.001]]), rules=[DATA]) == 0
    )
    assert tables.compare_table(a, book(tmp_path / "d.xlsx", [*rows, [None, None]]), rules=[DATA]) == 1
    assert tables.compare_table(a, book(tmp_path / "e.xlsx", [["NAME", "n"], *rows[1:]]), rules=[DATA]) == 0
    assert (
        tables.compare_table(
            a, book(tmp_path / "f.xlsx", [["NAME", "n"], *rows[1:]]), rules=[{**DATA, "ignore_case": True}]
        )
        == 1
    )
    assert tables.compare_table(None, a, rules=[DATA]) == 0
    assert tables.compare_table(a, a, rules=[{**DATA, "sheet_idx1": "ENother"}]) == 0
    with pytest.raises(ValueError, match="no such rule"):
        tables.compare_table(a, a, rules=[{"type": "magic", "sheet_idx0": 0, "sheet_idx1": "EI0"}])


def test_table_rules(tmp_path):
    def dress(wb, sheet):
        sheet["A1"].font = Font(bold=True, color="FFFF0000")
        sheet["A1"].fill = PatternFill("solid", fgColor="FF0000FF")
        sheet.merge_cells("B1:C1")
        sheet.freeze_panes = "B2"
        sheet.sheet_view.zoomScale = 200
        sheet.row_dimensions[3].hidden = True
        check = DataValidation(type="list", formula1='"Pass,Fail,Held"')
        check.add("D2:D29")
        sheet.add_data_validation(check)

    rows = [["x", "y", None], [1, 2, 3], [4, 5, 6]]
    plain, dressed = book(tmp_path / "p.xlsx", rows), book(tmp_path / "d.xlsx", rows, dress)

    def ok(rule, result=dressed, expected=dressed):
        return tables.compare_table(result, expected, rules=[rule]) == 1

    two = {"sheet_idx0": 0, "sheet_idx1": "EI0"}
    for rule in (
        {"type": "style", "props": ["font_color"], **two},
        {"type": "style", "props": ["bgcolor", "font_bold"], **two},
        {"type": "freeze", **two},
        {"type": "row_props", "props": ["hidden"], **two},
    ):
        assert ok(rule) and not ok(rule, plain)
    cell = {"type": "check_cell", "sheet_idx": 0, "coordinate": "A1"}
    assert ok(
        {
            **cell,
            "props": {
                "bgcolor": {"method": "eq", "ref": "FF0000FF"},
                "font_color": {"method": "eq", "ref": "FFFF0000"},
            },
        }
    )
    assert ok({**cell, "coordinate": "C1", "props": {"merge": {"method": "eq", "ref": True}}})
    assert not ok({**cell, "coordinate": "B2", "props": {"value": {"method": "approx:0.1", "ref": 3}}})
    assert ok({"type": "zoom", "sheet_idx": 0, "method": "lt", "ref": 260})
    assert not ok({"type": "zoom", "sheet_idx": 0, "method": "lt", "ref": 100})
    wanted = [
        {
            "ranges": {"method": "spreadsheet_range", "ref": ["D2:D29", "D2:D1048576"]},
            "type": {"method": "eq", "ref": "list"},
            "formula1": {"method": "str_set_eq", "ref": ["Pass", "Fail", "Held"]},
        }
    ]
    assert ok({"type": "data_validation", "sheet_idx": 0, "dv_props": wanted})
    assert not ok({"type": "data_validation", "sheet_idx": 0, "dv_props": wanted}, plain)
    fuzzy = {"type": "sheet_fuzzy", **two, "rules": [{"range": ["A1:B2"], "type": "exact_match"}]}
    assert ok(fuzzy, plain, dressed)
    assert not ok(fuzzy, book(tmp_path / "q.xlsx", [["x", "z"]]), dressed)
    assert ok({"type": "sheet_name"}) and not ok({"type": "sheet_name"}, book(tmp_path / "n.xlsx", rows, name="Other"))


def test_table_charts(tmp_path):
    def chart(kind, title):
        def add(wb, sheet):
            found = kind()
            found.title = title
            found.add_data(Reference(sheet, min_col=1, min_row=1, max_row=3), titles_from_data=False)
            sheet.add_chart(found, "E2")

        return add

    rows = [[1], [2], [3]]
    bar = book(tmp_path / "b.xlsx", rows, chart(BarChart, "T"))
    rule = {"type": "chart", "sheet_idx0": 0, "sheet_idx1": "EI0", "chart_props": ["type", "title"]}
    assert tables.compare_table(bar, book(tmp_path / "b2.xlsx", rows, chart(BarChart, "T")), rules=[rule]) == 1
    assert tables.compare_table(bar, book(tmp_path / "l.xlsx", rows, chart(LineChart, "T")), rules=[rule]) == 0
    assert tables.compare_table(bar, book(tmp_path / "u.xlsx", rows, chart(BarChart, "U")), rules=[rule]) == 0
    assert tables.compare_table(bar, book(tmp_path / "none.xlsx", rows), rules=[rule]) == 0


def test_table_printed(tmp_path):
    a, b = (tmp_path / n for n in ("r", "e"))
    for folder, text in ((a, "1.00,x\n"), (b, "1.00,X\n")):
        folder.mkdir()
        book(folder / "t.xlsx", [[1]])
        (folder / "t-Sheet1.csv").write_text(text)
    rule = {"type": "sheet_print", "sheet_idx0": 0, "sheet_idx1": "EI0"}
    assert tables.compare_table(str(a / "t.xlsx"), str(b / "t.xlsx"), rules=[rule]) == 0
    assert tables.compare_table(str(a / "t.xlsx"), str(b / "t.xlsx"), rules=[{**rule, "ignore_case": True}]) == 1


def text_document(path, *parts, change=lambda d: None):
    d = docx.Document()
    for p in parts:
        d.add_paragraph(p)
    change(d)
    d.save(path)
    return str(path)


def test_documents(tmp_path):
    a = text_document(tmp_path / "a.docx", "One  two", "", "three")
    b = text_document(tmp_path / "b.docx", "One two", "three")
    assert docs.compare_docx_files(a, b) == 1
    assert docs.compare_docx_files(a, b, ignore_blanks=False) == 0
    assert (
        docs.compare_docx_files_and_ignore_new_lines(
            a, text_document(tmp_path / "c.docx", "One  two", "three"), ignore_blanks=False
        )
        == 1
    )
    assert (
        docs.compare_docx_files(
            a, text_document(tmp_path / "d.docx", "three", "one two"), ignore_order=True, ignore_case=True
        )
        == 1
    )
    assert docs.compare_docx_files(a, text_document(tmp_path / "e.docx", "other")) == 0
    assert 0 < docs.compare_docx_files(b, text_document(tmp_path / "f.docx", "One two", "tree"), content_only=True) < 1
    assert docs.compare_docx_files(None, b) == 0


def test_document_formats(tmp_path):
    def dress(d):
        run = d.paragraphs[0].add_run(" H")
        sub = d.paragraphs[0].add_run("2")
        sub.font.subscript = True
        for r in (*d.paragraphs[0].runs, run):
            r.font.name = "Times New Roman"
        d.paragraphs[0].paragraph_format.alignment = 1
        d.paragraphs[0].paragraph_format.line_spacing = 2.0
        d.add_page_break()
        last = d.add_paragraph()
        last.add_run("gone").font.strike = True
        d.sections[0].footer.paragraphs[0].text = "Page 1"

    a, b = text_document(tmp_path / "a.docx", "x", change=dress), text_document(tmp_path / "b.docx", "x")
    assert doc_looks.compare_subscript_contains(a, a) == 1 and doc_looks.compare_subscript_contains(b, a) == 0
    assert doc_looks.is_first_line_centered(a) == 1 and doc_looks.is_first_line_centered(b) == 0
    assert doc_looks.contains_page_break(a) == 1 and doc_looks.contains_page_break(b) == 0
    assert doc_looks.contains_page_break(a, {"page_break_count": 2}) == 0
    assert doc_looks.has_page_numbers_in_footers(a) == 1 and doc_looks.has_page_numbers_in_footers(b) == 0
    assert (
        doc_looks.evaluate_strike_through_last_paragraph(a, a) == 1
        and doc_looks.evaluate_strike_through_last_paragraph(b, b) == 0
    )
    assert doc_looks.compare_line_spacing(a, a) == 1
    c = text_document(tmp_path / "c.docx", "x H2", "", "gone")
    assert doc_looks.compare_line_spacing(c, a) == 0
    one = text_document(
        tmp_path / "f.docx", change=lambda d: setattr(d.add_paragraph().add_run("y").font, "name", "Arial")
    )
    assert (
        doc_looks.compare_font_names(one, {"font_name": "Arial"}) == 1
        and doc_looks.compare_font_names(one, {"font_name": "Times"}) == 0
    )

    def italic(size):
        def change(d):
            run = d.add_paragraph().add_run("z")
            run.italic, run.font.size = True, Pt(size)

        return change

    i14, i12 = (text_document(tmp_path / f"i{n}.docx", change=italic(n)) for n in (14, 12))
    assert doc_looks.check_italic_font_size_14(i14, i12) == 1 and doc_looks.check_italic_font_size_14(i12, i12) == 0


def test_document_tables(tmp_path):
    def table(colour, words=("apple", "bee")):
        def change(d):
            t = d.add_table(1, 2)
            for cell, word in zip(t.rows[0].cells, words, strict=True):
                run = cell.paragraphs[0].add_run(word)
                run.font.color.rgb = RGBColor(*colour(word))

        return change

    right = text_document(tmp_path / "r.docx", change=table(lambda w: (255, 0, 0) if w == "apple" else (0, 0, 255)))
    wrong = text_document(tmp_path / "w.docx", change=table(lambda w: (0, 0, 255)))
    assert doc_looks.evaluate_colored_words_in_tables(right, wrong) == 1
    assert doc_looks.evaluate_colored_words_in_tables(wrong, right) == 0
    assert docs.compare_docx_tables(right, wrong) == 1
    assert (
        docs.compare_docx_tables(
            right, text_document(tmp_path / "o.docx", change=table(lambda w: (0, 0, 0), ("apple", "cat")))
        )
        == 0
    )
    records = text_document(tmp_path / "t.docx", "06:00,A1,x", "06:05,B2,y")
    doubled = text_document(tmp_path / "u.docx", "06:00,A1,x", "06:05,B2,y", "06:09,A1,z")
    assert docs.compare_unique_train_records(records, [records, doubled]) == 1
    assert docs.compare_unique_train_records(doubled, [records, doubled]) == 0


def deck(path, change=lambda p, s: None):
    p = pptx.Presentation()
    s = p.slides.add_slide(p.slide_layouts[1])
    s.shapes.title.text = "Title"
    s.placeholders[1].text = "Body"
    change(p, s)
    p.save(path)
    return str(path)


def test_pictures_of_a_document_and_one_that_is_broken(tmp_path):
    """A picture that cannot be read is the guest's wrong answer, told by its file, not a fault of the judge."""
    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        Image.new("RGB", (20, 20), colour).save(tmp_path / f"{name}.png")
        document = docx.Document()
        document.add_picture(str(tmp_path / f"{name}.png"))
        document.save(tmp_path / f"{name}.docx")
    red, blue, broken = (str(tmp_path / f"{n}.docx") for n in ("red", "blue", "broken"))
    with zipfile.ZipFile(red) as old, zipfile.ZipFile(broken, "w") as new:
        for part in old.namelist():
            new.writestr(part, b"no picture" if "/media/" in part else old.read(part))
    assert docs.compare_docx_images(red, red) == 1 and docs.compare_docx_images(blue, red) == 0
    with pytest.raises(Unreadable, match=r"broken\.docx") as e:
        docs.compare_docx_images(broken, red)
    assert str(e.value.path) == broken


def test_tab_stops(tmp_path):
    """One right tab stop at the far side: of another kind, or cleared, it is none. 0.6 of 6 inches off: 0.9."""

    def made(name, *stops, text="one two three\tthe rest"):
        document = docx.Document()
        paragraph = document.add_paragraph(text)
        for kind, inches in stops:
            paragraph.paragraph_format.tab_stops.add_tab_stop(Inches(inches), kind)
        document.save(tmp_path / name)
        return str(tmp_path / name)

    gold = made("gold.docx", (Tab.RIGHT, 5.0))

    def score(*stops, **more):
        return doc_looks.check_tabstops(made("a.docx", *stops, **more), gold)

    assert score((Tab.RIGHT, 5.0)) == 1 and score((Tab.RIGHT, 4.4)) == pytest.approx(0.9)
    assert score((Tab.LEFT, 0.0), (Tab.CLEAR, 1.0), (Tab.RIGHT, 5.0)) == 1
    for wrong in ((Tab.CENTER, 5.0), (Tab.LEFT, 5.0), (Tab.CLEAR, 5.0)):
        assert score(wrong) == 0, wrong
    assert score() == 0 and score((Tab.RIGHT, 5.0), (Tab.RIGHT, 3.0)) == 0
    assert score((Tab.RIGHT, 5.0), text="one two\tthree and the rest") == 0


def test_slides(tmp_path):
    a = deck(tmp_path / "a.pptx")
    assert slides.compare_pptx_files(a, deck(tmp_path / "b.pptx")) == 1

    def first(attribute, value):
        def change(p, s):
            s.shapes.title.text_frame.paragraphs[0].runs[0].font.__setattr__(attribute, value)

        return change

    bold = deck(tmp_path / "c.pptx", first("bold", True))
    assert slides.compare_pptx_files(a, bold) == 0
    assert slides.compare_pptx_files(a, bold, examine_font_bold=False) == 1
    size = deck(tmp_path / "d.pptx", first("size", pptx.util.Pt(9)))
    assert slides.compare_pptx_files(a, size) == 0 and slides.compare_pptx_files(a, size, examine_font_size=False) == 1

    def text(p, s):
        s.shapes.title.text = "Titel"

    assert slides.compare_pptx_files(a, deck(tmp_path / "e.pptx", text)) == 0
    assert slides.compare_pptx_files(a, deck(tmp_path / "e2.pptx", text), examine_text=False) == 1

    def move(p, s):
        s.shapes.title.left, s.shapes.title.top = 10, 20
        s.shapes.title.width, s.shapes.title.height = 100, 200

    moved = deck(tmp_path / "f.pptx", move)
    assert slides.compare_pptx_files(a, moved) == 0 and slides.compare_pptx_files(a, moved, examine_shape=False) == 1
    assert slides.compare_pptx_files(a, moved, examine_shape=False, examine_top_position=True) == 0
    assert (
        slides.compare_pptx_files(a, deck(tmp_path / "g.pptx", lambda p, s: p.slides.add_slide(p.slide_layouts[5])))
        == 0
    )

    def note(p, s):
        s.notes_slide.notes_text_frame.text = "remember"

    assert slides.compare_pptx_files(a, deck(tmp_path / "n.pptx", note)) == 0
    with pytest.raises(ValueError, match="no such option"):
        slides.compare_pptx_files(a, a, examine_magic=True)

    def portrait(p, s):
        p.slide_width, p.slide_height = p.slide_height, p.slide_width

    assert slides.check_slide_orientation_Portrait(deck(tmp_path / "p.pptx", portrait)) == 1
    assert slides.check_slide_orientation_Portrait(a) == 0
    assert slides.check_transition(a, {"slide_idx": 0, "transition_type": "dissolve"}) == 0


def pages(path, n):
    w = PdfWriter()
    for _ in range(n):
        w.add_blank_page(100, 100)
    w.write(path)
    return str(path)


def test_pdf(tmp_path):
    a = pages(tmp_path / "a.pdf", 2)
    assert pdf.check_pdf_pages(a, {"relation": "eq", "ref_value": 2}) == 1
    assert pdf.check_pdf_pages(a, {"relation": "eq", "ref_value": 1}) == 0
    assert pdf.compare_pdfs(a, a) == 1
    assert pdf.compare_pdfs(None, a) == 0
    assert pdf.compare_pdfs([a, None], [a, a]) == 0.5
    with pytest.raises(Unreadable):
        (tmp_path / "x.pdf").write_text("no pdf")
        pdf.compare_pdfs(str(tmp_path / "x.pdf"), a)


def test_archives(tmp_path):
    def zipped(name, **files):
        with zipfile.ZipFile(tmp_path / name, "w") as z:
            for k, v in files.items():
                z.writestr(k, v)
        return str(tmp_path / name)

    a = zipped("a.zip", one="x", two="y")
    assert archives.compare_zip_files(a, zipped("b.zip", two="y", one="x")) == 1
    assert archives.compare_zip_files(a, zipped("c.zip", one="x")) == 0
    assert archives.compare_archive(a, a, file_type="text") == 1
    assert archives.compare_archive(a, zipped("d.zip", one="x", two="z"), file_type="text") == 0.5
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as t:
        info = tarfile.TarInfo("./one")
        info.size = 1
        t.addfile(info, io.BytesIO(b"x"))
    assert archives.compare_archive(str(tmp_path / "t.tar.gz"), zipped("e.zip", one="x"), file_type="text") == 1


def test_mp3_tags(tmp_path):
    def frame(name, text):
        body = b"\x03" + text.encode()
        return name + len(body).to_bytes(4, "big") + b"\0\0" + body

    frames = frame(b"TIT2", "Missing You") + frame(b"TPE1", "Cheng Xiang")
    size = len(frames)
    head = b"ID3\x03\0\0" + bytes([size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127])
    (tmp_path / "a.mp3").write_bytes(head + frames)
    rule = {"title": {"method": "eq", "ref": "Missing You"}, "artist": {"method": "eq", "ref": "Cheng Xiang"}}
    assert archives.check_mp3_meta(str(tmp_path / "a.mp3"), rule) == 1
    assert archives.check_mp3_meta(str(tmp_path / "a.mp3"), {"title": {"method": "eq", "ref": "x"}}) == 0


def test_bombs_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("guiderail.tasks.judges.safe.MAX_UNPACKED", 8 << 20)
    bomb = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("xl/workbook.xml", b"\0" * (9 << 20))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(Unreadable, match="too much"):
        tables.compare_table(str(bomb), str(bomb), rules=[DATA])
    lol = tmp_path / "lol.docx"
    text_document(lol, "x")
    with zipfile.ZipFile(lol, "a") as z:
        z.writestr("word/extra.xml", '<!DOCTYPE a [<!ENTITY b "x">]><a>&b;</a>')
    with pytest.raises(Unreadable, match="document type"):
        docs.compare_docx_files(str(lol), str(lol))
    (tmp_path / "junk.docx").write_bytes(b"junk")
    with pytest.raises(Unreadable):
        docs.compare_docx_files(str(tmp_path / "junk.docx"), str(lol))
