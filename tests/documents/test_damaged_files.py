"""Damaged files of every format give text or a `DocumentError`, and no other error."""

import io
import random
import re
import zipfile

import pytest

from specprefill_cli.documents.registry import read_document
from specprefill_cli.errors import DocumentError
from tests.helpers import document_files

PARAGRAPH = "The tenant pays 300 euros; the lazy dog sleeps - Größe, Käse. " * 12
PAGE = (
    b'<!DOCTYPE html><html><head><meta charset="utf-8"><title>T</title><style>x{}</style></head><body><h1>Head</h1><p>a'
    b" &amp; b</p><!-- c --><script>x()</script><table><tr><td>1<td>2</table><pre>a\n b</pre><ul><li>x</ul></body></html>"
)
TEXTS = [PARAGRAPH, None, "Beta is the second page."]
FILES = {
    "pdf": ("a.pdf", document_files.make_pdf(TEXTS)),
    "pdf, plain streams": ("a.pdf", document_files.make_pdf(TEXTS, compressed=False)),
    "pdf, encrypted": ("a.pdf", document_files.make_pdf(TEXTS, owner="secret")),
    "docx": ("a.docx", document_files.word()),
    "pptx": ("a.pptx", document_files.slides()),
    "xlsx": ("a.xlsx", document_files.workbook()),
    "epub": ("a.epub", document_files.book(document_files.CHAPTERS, ["a%20b.xhtml", "b.xhtml"])),
    "html": ("a.html", PAGE),
    "csv": ("a.csv", b'name;note\nAnn;"two, or\nthree"\n1,5;2\n\n' * 20),
    "eml": ("a.eml", document_files.letter()),
    "rtf": ("a.rtf", rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}}\f0 The caf\'e9 fee is {\b 74} pounds.\par \u8364? five\par}"),
    "txt": ("a.txt", PARAGRAPH.encode()),
    "md": ("a.md", b"---\nx: 1\n---\n\n# Head\n\n* item\n\n| a | b |\n|---|---|\n"),
}
# Tokens on which parsers branch.
TOKENS = (
    b"<< >> [ ] ( stream\n endstream endobj R /Filter /JBIG2Decode /A85 /Length /Kids /Contents /Encoding BT TJ ' BI ID EI "
    b'</ <![CDATA[ <!-- &#0; &#xFFFFFF; <!ENTITY <w:tbl> <v> <f> <row> <td> <pre> <title> " ; \x00 \xff\xfe \xed\xa0\x80 -1'
).split(b" ")


def damage(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 4, 20])):
        place = rng.randrange(len(damaged) + 1)
        numbers = list(re.finditer(rb"\d+", damaged))
        match rng.randrange(5):
            case 0:
                del damaged[place : place + rng.randrange(200)]
            case 1:
                damaged[place : place + 1] = bytes([rng.randrange(256)])
            case 2:
                damaged[place:place] = b" ".join([rng.choice(TOKENS)] * rng.choice([1, 1, 5, 20_000]))
            case 3 if numbers:
                start, end = rng.choice(numbers).span()
                damaged[start:end] = rng.choice([b"0", b"7", b"-1", b"2147483648", b"9" * 30])
            case 4 if rng.random() < 0.2:
                del damaged[place:]
    return bytes(damaged)


def damage_part(data: bytes, rng: random.Random) -> bytes:
    source, stream = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    victim = rng.choice(source.namelist())
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            content = source.read(name)
            archive.writestr(name, damage(content, rng) if name == victim else content)
    return stream.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("label", FILES)
def test_damage_gives_text_or_one_error(label: str) -> None:
    name, data = FILES[label]
    assert read_document(data, name).text
    for seed in range(8):
        rng = random.Random(f"{label}/{seed}")
        inside = data.startswith(b"PK") and rng.random() < 0.8
        mutant = damage_part(data, rng) if inside else damage(data, rng)
        try:
            document = read_document(mutant, name)
            lines = [*document.warnings, document.name]
            document.text.encode()
        except DocumentError as error:
            lines = [str(error)]
        assert all(line.isprintable() for line in lines), seed
