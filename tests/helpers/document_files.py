"""Makes documents of every format."""

import io
import zipfile
from collections.abc import Sequence
from datetime import date
from email.message import EmailMessage
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from fpdf import FPDF
from fpdf.enums import EncryptionMethod
from PIL import Image

from specprefill_cli.documents.reader import LIMITS
from specprefill_cli.documents.registry import read_document
from specprefill_cli.errors import DocumentError

ROWS = [["", "2019", "2020"], ["mass", None, 7]]


def make_pdf(
    texts: list[str | None],
    password: str | None = None,
    owner: str | None = None,
    method: EncryptionMethod = EncryptionMethod.RC4,
    compressed: bool = True,
) -> bytes:
    """Make a PDF with a page for each text, and an image page for None."""
    file = FPDF()
    file.set_compression(compressed)
    if owner is not None:
        file.set_encryption(owner_password=owner, user_password=password or "", encryption_method=method)
    for text in texts:
        file.add_page()
        if text is None:
            file.image(Image.new("RGB", (8, 8), "red"), w=20)
        else:
            file.set_font("helvetica", size=12)
            file.multi_cell(0, 6, text)
    return bytes(file.output())


def raw_pdf(content: str, *, annotations: Sequence[str] = (), font: str = "", to_unicode: str = "") -> bytes:
    """Make a PDF of one page from the operators of its content, its annotations, and its font `F1` or that font's map."""
    helvetica = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"
    mapped = f"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/FirstChar 32/LastChar 129/Widths[{'500 ' * 98}]/ToUnicode 6 0 R>>"
    first = 7
    references = " ".join(f"{first + number} 0 R" for number in range(len(annotations)))
    objects = [
        f"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[{references}]>>>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Annots[{references}]/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(content)}>>stream\n{content}\nendstream",
        font or (mapped if to_unicode else helvetica),
        f"<</Length {len(to_unicode) + 52}>>stream\n12 dict begin begincmap\n{to_unicode}\nendcmap end          \nendstream",
        *annotations,
    ]
    data = "%PDF-1.7\n"
    places = []
    for number, text in enumerate(objects, start=1):
        places.append(len(data))
        data += f"{number} 0 obj\n{text}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer<</Size {len(objects) + 1}/Root 1 0 R>>\n"
    return f"{data}{end}startxref\n{len(data)}\n%%EOF".encode("latin-1")


def refusal(data: bytes, name: str, **limits: int) -> str:
    """The error message for a document that is refused, beyond other limits."""
    with pytest.MonkeyPatch.context() as patch:
        for limit, value in limits.items():
            patch.setattr(LIMITS, limit, value)
        with pytest.raises(DocumentError) as caught:
            read_document(data, name)
    assert caught.value.exit_code == 1
    assert str(caught.value).isprintable()
    return str(caught.value)


def page_texts(document) -> list[str]:
    return [document.text[page.start : page.end] for page in document.pages]


def save_to_bytes(document) -> bytes:
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def word() -> bytes:
    document = docx.Document()
    document.add_heading("The lease", level=2)
    document.add_paragraph("The tenant pays 300 euros.")
    item = document.add_paragraph("First")
    item._p.get_or_add_pPr().get_or_add_numPr()._add_numId().val = 77
    table = document.add_table(rows=2, cols=3)
    for row, values in zip(table.rows, ROWS, strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            cell.text = str(value or "")
    # Word can put a control around a cell.
    inner = table.rows[1].cells[1]._tc
    place = inner.getparent().index(inner)
    wrapped = parse_xml(f"<w:sdt {nsdecls('w')}><w:sdtContent/></w:sdt>")
    inner.getparent().insert(place, wrapped)
    wrapped[0].append(inner)
    changed = document.add_paragraph("The notice is ")
    for tag, text_tag, text in (("ins", "t", "two"), ("del", "delText", "nine")):
        run = f"<w:r><w:{text_tag}>{text}</w:{text_tag}></w:r>"
        changed._p.append(parse_xml(f"<w:{tag} {nsdecls('w')} w:id='1' w:author='x'>{run}</w:{tag}>"))
    changed.add_run(" months.")
    control = (
        f"<w:sdt {nsdecls('w')}><w:sdtContent><w:p><w:r><w:t>In a control.</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    )
    document.element.body.insert(0, parse_xml(control))
    return save_to_bytes(document)


def slides() -> bytes:
    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[1])
    first.shapes.title.text = "Harbour"
    first.placeholders[1].text = "Opens at nine\nCloses at five"
    first.notes_slide.notes_text_frame.text = "Say hello."
    deck.slides.add_slide(deck.slide_layouts[6])
    third = deck.slides.add_slide(deck.slide_layouts[6])
    table = third.shapes.add_table(2, 3, 0, 0, 100, 100).table
    for number, values in enumerate(ROWS):
        for place, value in enumerate(values):
            table.cell(number, place).text = str(value or "")
    group = third.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 10, 10).text_frame.text = "In a group"
    return save_to_bytes(deck)


def workbook() -> bytes:
    book = openpyxl.Workbook()
    for row in ROWS:
        book.active.append(row)
    book.active.title = "Figures"
    second = book.create_sheet("Dates")
    second["A1"], second["B1"], second["C1"], second["D1"] = date(2024, 2, 29), 0.425, True, 2.5
    second["B1"].number_format = "0.0%"
    second["A1048576"] = "far below"
    return save_to_bytes(book)


def book(chapters: dict[str, str], spine: list[str], extra: dict[str, Any] | None = None) -> bytes:
    """Make an EPUB with entries for `chapters` below OPS/. spine: names in reading order."""
    items = "".join(f'<item id="c{n}" href="{name}"/>' for n, name in enumerate(spine))
    order = "".join(f'<itemref idref="c{n}"/>' for n in range(len(spine)))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr(
            "META-INF/container.xml",
            '<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OPS/book.opf"/></rootfiles></container>',
        )
        opf = f"<manifest>{items}</manifest><spine>{order}</spine>"
        archive.writestr("OPS/book.opf", f'<package xmlns="http://www.idpf.org/2007/opf">{opf}</package>')
        for name, body in chapters.items():
            archive.writestr(f"OPS/{name}", f'<?xml version="1.0"?><html><body>{body}</body></html>')
        for name, text in (extra or {}).items():
            archive.writestr(name, text)
    return stream.getvalue()


CHAPTERS = {"b.xhtml": "<h1>Two</h1><p>It ends.</p>", "a b.xhtml": "<h1>One</h1><script>x()</script><p>It begins.</p>"}


def letter() -> bytes:
    """A letter in base64 and HTML with three attachments, the last of no known kind."""
    message = EmailMessage()
    message["From"], message["Subject"] = "r@example.org", "Fee für 2025"
    message.set_content("The fee rises to 74 pounds.\n", cte="base64")
    message.add_alternative("<p>Html</p>", subtype="html")
    message.add_attachment("Name,Bonus\nMoss,930\n", subtype="csv", filename="t.csv")
    message.add_attachment(make_pdf(["Alpha"]), maintype="application", subtype="pdf", filename="a.pdf")
    message.add_attachment(b"\0\1", maintype="application", subtype="x-odd", filename="b.bin")
    return bytes(message)
