"""Office files that look like the outcome of a task and are not, or that a judge could choke on."""

import io
import zipfile

import docx
import openpyxl
import pytest
from docx.enum.text import WD_ALIGN_PARAGRAPH
from openpyxl.styles import Font

from guiderail.tasks.desktop.suite import TEMPLATES, make
from guiderail.tasks.instances import instance_seed
from guiderail.tasks.judges import doc_looks, docs, tables
from guiderail.tasks.judges.judge import combine
from guiderail.tasks.judges.safe import Unreadable, check_office
from guiderail.tasks.types import TaskSpec

SHEET, BODY = "xl/worksheets/sheet1.xml", "word/document.xml"
METRICS = {m.__name__: m for m in (tables.compare_table, docs.compare_docx_files, doc_looks.is_first_line_centered)}


def task_of(name):
    t = TEMPLATES["desktop_office"][name]
    seed = instance_seed("train", name, 0)
    return make(TaskSpec("desktop_office", name, seed, "train", 0, t.domain, t.max_steps, 1.0))


def score(made, data, folder):
    """What the task's own metrics say of the file `data`."""
    scores = []
    for check in made.task.checks:
        (folder / check.result["dest"]).write_bytes(data)
        arguments = [str(folder / check.result["dest"])]
        if check.expected is not None:
            (folder / check.expected["path"]).write_bytes(made.files[check.expected["path"]])
            arguments.append(str(folder / check.expected["path"]))
        scores.append(METRICS[check.func](*arguments, **(check.options or {})))
    return combine(scores, made.task.conj)


def changed(data, part, old, new):
    """`data` with the first `old` in one part replaced."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {n: archive.read(n).decode() for n in archive.namelist()}
    assert old in parts[part]
    parts[part] = parts[part].replace(old, new, 1)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return out.getvalue()


def book(data, change):
    found, out = openpyxl.load_workbook(io.BytesIO(data)), io.BytesIO()
    change(found, found.active)
    found.save(out)
    return out.getvalue()


def letter(data, change):
    found, out = docx.Document(io.BytesIO(data)), io.BytesIO()
    change(found)
    found.save(out)
    return out.getvalue()


def hide_first(wb, sheet):
    wb.create_sheet("other")
    sheet.sheet_state, wb.active = "hidden", 1


@pytest.mark.parametrize(
    "change",
    [
        lambda wb, s: wb.create_sheet("other"),
        hide_first,
        lambda wb, s: setattr(s, "title", "Other"),
        lambda wb, s: setattr(s.row_dimensions[3], "hidden", True),
        lambda wb, s: setattr(s.column_dimensions["B"], "hidden", True),
    ],
)
def test_a_right_cell_in_a_sheet_that_was_hidden_or_joined_by_others(tmp_path, change):
    made = task_of("sheet-set-cell")
    assert score(made, book(made.files["wanted.xlsx"], lambda wb, s: None), tmp_path) == 1
    assert score(made, book(made.files["wanted.xlsx"], change), tmp_path) == 0


def test_bold_beyond_the_heading(tmp_path):
    made = task_of("sheet-bold-heading")

    def bold(*names):
        def change(wb, sheet):
            for name in names:
                sheet[name].font = Font(bold=True)

        return score(made, book(made.files["table.xlsx"], change), tmp_path)

    assert bold("A1", "B1") == bold("A1", "B1", "C1") == 1
    assert bold("A1", "B1", "B2") == bold("A1", "B1", "A3") == bold("A1") == 0


@pytest.mark.timeout(60)
def test_a_value_at_the_far_end_of_a_sheet_costs_the_judge_nothing(tmp_path):
    made = task_of("sheet-set-cell")
    stock = made.files["stock.xlsx"]
    assert score(made, book(stock, lambda wb, s: s.cell(1048576, 16384, 40)), tmp_path) == 0
    for area in ("mergeCells><mergeCell", "hyperlinks><hyperlink"):
        whole = f'</sheetData><{area} ref="A1:XFD1048576"/></{area.partition(">")[0]}>'
        with pytest.raises(Unreadable, match="merges or links more"):
            score(made, changed(stock, SHEET, "</sheetData>", whole), tmp_path)
    assert score(made, changed(stock, SHEET, "<v>12</v>", f"<v>{'9' * 400}</v>"), tmp_path) == 0
    assert tables.plain(-(10**400)) == float("-inf")


def test_a_document_type_in_a_part_of_any_name_and_either_byte_order(tmp_path):
    for name, encoding in (("sheet.dat", "utf-8"), ("sheet.xml", "utf-16-be"), ("sheet.xml", "utf-16")):
        with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
            archive.writestr(name, '<!DOCTYPE x [<!ENTITY a "b">]><x/>'.encode(encoding))
        with pytest.raises(Unreadable, match="document type"):
            check_office(tmp_path / "a.xlsx")


JUNK = "<w:p><w:r><w:t>junk</w:t></w:r></w:p>"
BESIDE = {
    "control": f"<w:sdt><w:sdtContent>{JUNK}</w:sdtContent></w:sdt>",
    "inserted": '<w:p><w:ins w:id="1" w:author="a"><w:r><w:t>junk</w:t></w:r></w:ins></w:p>',
    "deleted": '<w:p><w:del w:id="1" w:author="a"><w:r><w:delText>junk</w:delText></w:r></w:del></w:p>',
    "box": f"<w:p><w:r><w:pict><w:txbxContent>{JUNK}</w:txbxContent></w:pict></w:r></w:p>",
}


@pytest.mark.parametrize("name", ["writer-append", "writer-first-paragraph"])
def test_a_right_paragraph_among_what_nobody_asked_for(tmp_path, name):
    made = task_of(name)
    wanted, word = made.files["wanted.docx"], made.values["word"]
    assert score(made, letter(wanted, lambda d: d.add_paragraph("")), tmp_path) == 1
    assert score(made, changed(wanted, BODY, word, word.capitalize()), tmp_path) == 1  # as autocorrection writes it
    split = f"{word[:2]}</w:t></w:r><w:r><w:t>{word[2:]}"
    assert score(made, changed(wanted, BODY, word, split), tmp_path) == 1
    for what in BESIDE.values():
        assert score(made, changed(wanted, BODY, "<w:sectPr>", f"{what}<w:sectPr>"), tmp_path) == 0, what
    hidden = f'<w:r><w:rPr><w:vanish/></w:rPr><w:t xml:space="preserve">{word}'
    assert score(made, changed(wanted, BODY, f'<w:r><w:t xml:space="preserve">{word}', hidden), tmp_path) == 0
    for change in (
        lambda d: setattr(d.add_table(1, 1).cell(0, 0), "text", "junk"),
        lambda d: setattr(d.sections[0].header.paragraphs[0], "text", "junk"),
    ):
        assert score(made, letter(wanted, change), tmp_path) == 0


def test_what_is_centred(tmp_path):
    made = task_of("writer-centre")
    poem = made.files["poem.docx"]

    def aligned(how, front=""):
        jc = f'<w:p><w:pPr><w:jc w:val="{how}"/></w:pPr>'
        return score(made, changed(poem, BODY, "<w:p>", f"{jc}{front}"), tmp_path)

    assert aligned("center") == 1
    assert aligned("center", front="</w:p><w:p>") == 0  # a blank one in front, and that one centred
    assert aligned("start") == aligned("end") == 0  # as LibreOffice writes left and right

    def styled(d):
        style = d.styles.add_style("Middle", 1)
        style.paragraph_format.alignment = WD_ALIGN_PARAGRAPH.CENTER
        d.paragraphs[0].style = style

    def everything(d):
        for p in d.paragraphs:
            p.alignment = WD_ALIGN_PARAGRAPH.CENTER

    assert score(made, letter(poem, styled), tmp_path) == 1
    assert score(made, letter(poem, everything), tmp_path) == 0


def test_a_document_without_a_body_is_none(tmp_path):
    made = task_of("writer-append")
    data = changed(made.files["letter.docx"], BODY, "<w:body>", "<w:x>")
    with pytest.raises(Unreadable):
        score(made, changed(data, BODY, "</w:body>", "</w:x>"), tmp_path)
