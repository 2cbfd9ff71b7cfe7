"""DOCX, PPTX, XLSX, EPUB and CSV: text, pages, and refused files."""

import io
import sys
import zipfile
from typing import Any

import docx
import openpyxl
import pytest
from docx.enum.style import WD_STYLE_TYPE
from docx.oxml import parse_xml

from specprefill_cli.documents import extras
from specprefill_cli.documents.registry import read_document
from specprefill_cli.documents.xlsx import UNCALCULATED
from specprefill_cli.errors import pip_command
from tests.helpers.document_files import CHAPTERS, book, page_texts, refusal, save_to_bytes, slides, word, workbook

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def test_docx_text_is_complete_and_in_order() -> None:
    document = read_document(word(), "a.docx")
    assert document.text.split("\n") == [
        *("In a control.", "", "## The lease", "The tenant pays 300 euros.", "- First"),
        *("| 2019 | 2020", "mass | 2020: 7", "The notice is two months."),
    ]
    assert len(document.pages) == 1


def test_docx_footnotes_and_files_inside_stand_at_the_end() -> None:
    source, stream = zipfile.ZipFile(io.BytesIO(word())), io.BytesIO()
    schema = "http://schemas.openxmlformats.org/%s/2006/%s"
    text = '<w:footnote w:id="2"><w:p><w:r><w:footnoteRef/></w:r><w:r><w:t> As agreed.</w:t></w:r></w:p></w:footnote>'
    note = f'<w:footnotes xmlns:w="{schema % ("wordprocessingml", "main")}">{text}</w:footnotes>'
    kinds = ("begin", "separate", "end")
    marks = ('footnoteReference w:id="2"', *(f'fldChar w:fldCharType="{kind}"' for kind in kinds))
    mark, begin, separate, end = (f"<w:r><w:{element}/></w:r>" for element in marks)
    inner = f"{begin}{separate}<w:r><w:t>300</w:t></w:r>{end}"
    field = f"{mark}{begin}<w:r><w:instrText>= </w:instrText></w:r>{inner}{separate}<w:r><w:t> 500</w:t></w:r>{end}"
    link = f'<Relationship Id="r" Type="{schema % ("officeDocument", "relationships/footnotes")}" Target="notes.xml"/>'
    link += f'<Relationship Id="c" Type="{schema % ("officeDocument", "relationships/aFChunk")}" Target="c.html"/>'
    with zipfile.ZipFile(stream, "w") as archive:
        for name in source.namelist():
            data = source.read(name)
            if name == "word/_rels/document.xml.rels":
                data = data.replace(b"</Relationships>", f"{link}</Relationships>".encode())
            data = data.replace(b"months.</w:t></w:r>", f"months.</w:t></w:r>{field}".encode())
            archive.writestr(name, data)
        archive.writestr("word/notes.xml", note)
        archive.writestr("word/c.html", "<html><p>Agreed later.")
    assert read_document(stream.getvalue(), "a.docx").text.endswith(
        "months.[1] 500\n\n[1] As agreed.\n# Attachment: word/c.html\n\nAgreed later."
    )


def test_pptx_slides_are_pages() -> None:
    document = read_document(slides(), "a.pptx")
    assert page_texts(document) == [
        "Harbour\nOpens at nine\nCloses at five\nNotes: Say hello.",
        "",
        "| 2019 | 2020\nmass | 2020: 7\nIn a group",
    ]
    assert document.warnings == ("no text on page 2 (pictures?)",)


def test_xlsx_sheets_are_pages() -> None:
    document = read_document(workbook(), "a.xlsx")
    assert page_texts(document) == [
        "# Figures\n| 2019 | 2020\nmass | 2020: 7",
        "# Dates\n2024-02-29 | 42.5% | TRUE | 2.5\nfar below",
    ]
    assert document.warnings == ()


def test_empty_rows_of_a_sheet_part_tables_unless_amounts_go_on_below() -> None:
    book = openpyxl.Workbook()
    rows = [["Employee", "Hours", "Pay"], [], ["Orla", 10, 250], [], [], ["Moss", 5, 100]]
    rows += [[], ["A", "B", "C"], ["x", 1, 2]]
    for number, row in enumerate(rows, start=1):
        for column, value in enumerate(row, start=1):
            book.active.cell(number, column, value)
    assert page_texts(read_document(save_to_bytes(book), "a.xlsx"))[0].split("\n")[1:] == [
        "Employee | Hours | Pay", "Employee: Orla | Hours: 10 | Pay: 250", "Employee: Moss | Hours: 5 | Pay: 100",
        "A | B | C", "A: x | B: 1 | C: 2",
    ]  # fmt: skip


def test_xlsx_formulas_never_calculated_are_reported() -> None:
    sheet = openpyxl.Workbook()
    sheet.active.append(["sum", "=1+1"])
    assert "formulas without a stored value" in read_document(save_to_bytes(sheet), "a.xlsx").warnings[0]


def test_epub_chapters_are_pages_in_the_order_of_the_spine() -> None:
    document = read_document(book(CHAPTERS, ["a%20b.xhtml", "b.xhtml"]), "a.epub")
    assert page_texts(document) == ["One\nIt begins.", "Two\nIt ends."]
    assert document.warnings == ()


def test_epub_reports_missing_and_damaged_chapters_and_refuses_protected_ones() -> None:
    damaged = "<p>Caf\u00e9 \u00e0 l'\u00e9t\u00e9</p>".encode() + b"\xc3(</p>"
    document = read_document(book({}, ["b.xhtml"], {"OPS/b.xhtml": damaged}), "a.epub")
    assert "OPS/b.xhtml: damaged UTF-8" in document.warnings[0]
    document = read_document(book(CHAPTERS, ["b.xhtml", "gone.xhtml"]), "a.epub")
    assert document.warnings == ("1 of 2 chapters are missing, the first: OPS/gone.xhtml",)
    for entry, protected in (("OPS/font.otf", False), ("OPS/b.xhtml", True)):
        encryption = f'<e><CipherReference URI="{entry}"/></e>'
        data = book(CHAPTERS, ["b.xhtml"], {"META-INF/encryption.xml": encryption})
        if protected:
            assert "protected against copying (DRM)" in refusal(data, "a.epub")
        else:
            assert read_document(data, "a.epub").text == "Two\nIt ends."


def test_entities_that_expand_without_bound_are_refused() -> None:
    entities = "".join(f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">' for level in range(1, 12))
    bomb = f'<!DOCTYPE e [<!ENTITY e0 "lol">{entities}]><e>&e11;</e>'
    message = refusal(book(CHAPTERS, ["b.xhtml"], {"META-INF/encryption.xml": bomb}), "a.epub")
    assert message.startswith("a.epub: the file is damaged or of another kind (limit on input amplification")


def test_a_csv_cell_may_hold_a_long_text_up_to_the_limit() -> None:
    text = "id,text\n1," + "word " * 40_000
    assert read_document(text.encode(), "a.csv").text.count("word") == 40_000
    assert "not a table with delimiters" in refusal(text.encode(), "a.csv", max_characters=100_000)


FILES = [(word, "docx"), (slides, "pptx"), (workbook, "xlsx"), (lambda: book(CHAPTERS, ["b.xhtml"]), "epub")]


@pytest.mark.parametrize(("make", "suffix"), FILES)
def test_files_without_a_suffix_damaged_files_and_bombs(make, suffix: str) -> None:
    data, name = make(), f"a.{suffix}"
    assert read_document(data, "stdin").text == read_document(data, name).text
    assert " more bytes, the limit is -100,000" in refusal(data, name, max_growth=-100_000)
    assert f"{name}: the file is damaged" in refusal(data[: len(data) // 2], name)
    source, stream = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for entry in source.namelist():
            archive.writestr(entry, source.read(entry)[:-9] if entry.endswith((".xml", ".opf")) else "")
    assert f"{name}: the file is damaged" in refusal(stream.getvalue(), name)


def test_one_string_repeated_in_many_cells_is_stopped_at_the_limit() -> None:
    sheet = openpyxl.Workbook()
    for _ in range(100):
        sheet.active.append(["x" * 1000] * 10)
    message = refusal(save_to_bytes(sheet), "a.xlsx", max_characters=5_000)
    assert "more than the limit of 5,000 characters of text" in message


@pytest.mark.parametrize(("data", "name", "packages"), [
    (workbook(), "a.xlsx", ["openpyxl"]), (b"{\\rtf1 x}", "a.rtf", ["kreuzberg"]),
    (b"\xff\xd8\xffrest", "a.jpg", ["rapidocr", "onnxruntime"]),
])  # fmt: skip
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, data: bytes, name: str, packages: list[str]) -> None:
    monkeypatch.setattr(extras, "can_recognise", lambda: False)
    monkeypatch.setitem(sys.modules, packages[0], None)
    assert f"; install it with {pip_command(*packages)}" in refusal(data, name)


def test_xlsx_rounds_like_spreadsheets_and_keeps_empty_texts() -> None:
    sheet = openpyxl.Workbook()
    sheet.active.append(["sum", 1234.5600000000002, 0.1 + 0.2])
    assert page_texts(read_document(save_to_bytes(sheet), "a.xlsx")) == ["# Sheet\nsum | 1234.56 | 0.3"]
    assert not UNCALCULATED.search(b'<c r="A1" t="str"><f>IF(B1="","",B1)</f><v></v></c>')
    assert UNCALCULATED.search(b'<c r="A1"><f>1+1</f><v></v></c>')
    # A quadratic search would not come to an end.
    assert UNCALCULATED.search(b"<f " * 2_000_000) is None


def test_docx_headers_and_footers_are_read_once() -> None:
    document = docx.Document()
    document.add_paragraph("The lease runs for ten years.")
    document.sections[0].header.paragraphs[0].text = "Contract 4711"
    document.add_section()
    document.sections[1].header.is_linked_to_previous = False
    document.sections[1].header.paragraphs[0].text = "Contract 4711"
    document.sections[0].footer.paragraphs[0].text = "Confidential"
    (text,) = page_texts(read_document(save_to_bytes(document), "a.docx"))
    assert text.count("Contract 4711") == text.count("Confidential") == 1
    assert text.endswith("The lease runs for ten years.")


def docx_element(inner: str) -> Any:
    """An element of Word's, by its tag, attributes and content without the end tag."""
    return parse_xml(f"<w:{inner.replace(' ', f' {W} ', 1)}</w:{inner.split()[0]}>")


def test_docx_styles_number_clauses_and_hide_text() -> None:
    document = docx.Document()
    numbering, styles = document.part.numbering_part.element, document.styles
    forms = ("decimal", "1", "%1."), ("decimal", "1", "%1.%2"), ("lowerRoman", "9", "(%3)"), ("bullet", "1", "\uf0b7")
    levels = "".join(
        f'<w:lvl w:ilvl="{depth}"><w:start w:val="{start}"/><w:numFmt w:val="{form}"/><w:lvlText w:val="{text}"/></w:lvl>'
        for depth, (form, start, text) in enumerate(forms)
    )
    numbering.append(docx_element(f'abstractNum w:abstractNumId="90">{levels}'))
    restarted = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/></w:lvlOverride>'
    for number, override in ((90, ""), (91, restarted)):
        numbering.append(docx_element(f'num w:numId="{number}"><w:abstractNumId w:val="90"/>{override}'))
    for depth, number in ((0, 90), (1, 90), (2, 90), (3, 90), (0, 91)):
        style = styles.add_style(f"Level {depth} {number}", WD_STYLE_TYPE.PARAGRAPH)
        properties = f'<w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/>'
        style.element.get_or_add_pPr().append(docx_element(f"numPr >{properties}"))
    styles["Level 1 90"].base_style = styles["Heading 2"]
    styles.add_style("Note", WD_STYLE_TYPE.CHARACTER).font.hidden = True
    styles.add_style("Power", WD_STYLE_TYPE.CHARACTER).font.superscript = True
    for place in ("0 90", "1 90", "1 90", "2 90", "2 90", "3 90", "0 90", "0 91"):
        document.add_paragraph("Text", style=f"Level {place}")
    document.add_paragraph("10").add_run("6", style="Power")
    document.paragraphs[-1].add_run(" for the printer", style="Note")
    clause, deleted = (document.add_paragraph("Text", style="Level 0 90") for _ in range(2))
    deleted._p.get_or_add_pPr().append(docx_element("rPr ><w:del/>"))
    clause.add_run()._r.append(
        docx_element("pict ><w:txbxContent><w:p><w:r><w:t>Draft</w:t></w:r></w:p></w:txbxContent>")
    )
    raised = document.add_paragraph("10", style="Level 0 90").add_run("6", style="Power")
    raised._r.insert(0, docx_element("noBreakHyphen >"))
    marks = ("1.", "", "## 1.1", "", "## 1.2", "(ix)", "(x)", "-", "2.", "7.")
    lines = read_document(save_to_bytes(document), "a.docx").text.split("\n")
    clauses = [f"{mark} Text" if mark else "" for mark in marks]
    assert lines == [*clauses, "10^6", "8. Text", "Draft", "Text", "9. 10^-6"]
