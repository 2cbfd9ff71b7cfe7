"""Text, Markdown and HTML, and the choice of the reader."""

import codecs
import gzip
import sys
from unittest.mock import Mock

import pytest

from specprefill_cli.documents import registry
from specprefill_cli.documents.registry import read_document
from tests.helpers.document_files import make_pdf, refusal

GERMAN = "Größe, Käse und Öl stehen im Menü für übermüdete Gäste."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html", "stdin", "LICENSE"])
def test_unicode_encodings(encoding: str, name: str) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    document = read_document(mark + GERMAN.encode(encoding), name)
    assert document.text == GERMAN
    assert document.warnings == ()
    assert [(page.number, page.start, page.end) for page in document.pages] == [(1, 0, len(GERMAN))]


@pytest.mark.parametrize(("text", "encoding"), [(GERMAN, "cp1252"), ("Привет! Это документ о погоде.", "cp1251")])  # noqa: RUF001
def test_other_encodings_are_guessed_with_a_warning(text: str, encoding: str) -> None:
    document = read_document(text.encode(encoding), "a.txt")
    assert document.text == text
    assert "not UTF-8: read as cp125" in document.warnings[0]


MARKDOWN = "---\ntitle: x\n---\n\n# Head\n\n\n\n\n* o\ufb03ce  \n"


@pytest.mark.parametrize(
    ("source", "name", "text"),
    [("red-\nish\n\n\n\n\nviolets", "a.txt", "red-\nish\n\n\nviolets"), (MARKDOWN, "a.md", MARKDOWN)],
)
def test_text_and_markdown_keep_their_lines(source: str, name: str, text: str) -> None:
    assert read_document(source.replace("\n", "\r\n").encode(), name).text == text


PAGE = """<!DOCTYPE html><html><head><title> The
 title</title><style>css {}</style></head><body><!-- comment --><h1>Head</h1>
<p>one <b>two</b>three &amp; o&shy;n</p><script>code()</script><noscript>none</noscript><template>hidden</template>
<table><tr><th></th><th>2019</th><th>2020</th></tr><tr><td>mass</td><td></td><td><p>7</p></td></tr>
<tr><td>time</td><td></td></tr><tr><td>size</td></tr></table>
after<ul><li>first<li>second</ul><pre>a
  b</pre>last<br>line</body></html>"""


def test_html_blocks_are_lines_and_cells_have_bars() -> None:
    document = read_document(PAGE.encode(), "a.html")
    assert document.text.split("\n") == [
        *("The title", "", "Head", "one twothree & on"),
        *("| 2019 | 2020", "mass | 2020: 7", "time", "size"),
        *("after", "first", "second", "a", "  b", "last", "line"),
    ]


@pytest.mark.parametrize(("declaration", "encoding", "text"), [
    ("<meta charset=iso-8859-2>", "iso-8859-2", "ŘŤĎ"),
    ('<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-2">', "iso-8859-2", "ŘŤĎ"),
    ('<?xml version="1.0" encoding="ISO-8859-2"?>', "iso-8859-2", "ŘŤĎ"),
    ('<meta charset="ISO-8859-1">', "cp1252", "€5 — “two”"), ("<meta charset=shift_jis>", "cp932", "①㈱ 50円"),
    ("<meta charset=windows-874>", "cp874", "ค่า 50"), ("<meta charset=iso-8859-8-i>", "iso-8859-8", "דמי 50"),
])  # fmt: skip
def test_html_believes_the_declared_encoding(declaration: str, encoding: str, text: str) -> None:
    document = read_document(f"{declaration}<html><body>{text}</body></html>".encode(encoding), "a.html")
    assert (document.text, document.warnings) == (text, ())
    page = f"<meta charset=unicode_escape><html><body>{text}</body></html>".encode(encoding)
    assert "a guess;" in read_document(page, "a.html").warnings[0]


STRAY = "<html><body><p>one<p>two</div><div><template>x</div>three<pre> a</body> b<title>late</title>"
DEEP = "<div>" * 5 * sys.getrecursionlimit()


@pytest.mark.parametrize(("page", "text"), [(STRAY, "late\n\none\ntwo\nthree\n a\nb"), (DEEP + "x", "x")])
def test_html_with_unclosed_stray_and_deep_tags_keeps_its_text(page: str, text: str) -> None:
    assert read_document(page.encode(), "a.html").text == text


@pytest.mark.parametrize(("data", "name", "words"), [
    (b"\x89PNG\r\n\x1a\n\0rest", "a.pdf", "a.pdf: this is binary data (it holds NUL bytes), not a .pdf file"),
    (b"PK\x03\x04rest", "a.zip", "a.zip: this is a ZIP archive;"),
    (b"PK\x03\x04....[Content_Types].xml....word/document.xml", "a.docx", "a.docx: the file is damaged"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1rest", "a.docx", "an old or encrypted Microsoft Office file, not a .docx"),
    (gzip.compress(b"hello", mtime=0), "stdin", "this is binary data"),
    (b"text\x00text", "a.md", "binary data (it holds NUL bytes), not a .md file"),
    (b"<html>login", "a.pdf", "not a .pdf file: it is of another kind, or lost its beginning"),
    (b"", "a.pdf", "a.pdf: the file is empty"), (b" \n\t", "a.txt", "it holds no text"),
    (b"<html><script>x</script>", "a.html", "it holds no text"),
    (bytes(range(128, 256)) * 9, "a.txt", "the character encoding is not recognised"),
    (b"x\x00", "bad\n\x1b[31m\udcff.txt", "bad\\n\\x1b[31m\\udcff.txt: this is binary data"),
])  # fmt: skip
def test_refusals_name_the_format_of_the_file(data: bytes, name: str, words: str) -> None:
    assert words in refusal(data, name)


@pytest.mark.parametrize("text", ["GGUF is a file format.", "ID3 splits on gain.", "BZh and gzip", "GIF89a: why"])
def test_text_that_starts_like_a_signature_is_text(text: str) -> None:
    assert read_document(text.encode(), "a.txt").text == text
    assert "not a .txt file" in refusal(text.encode() + b"\x00", "a.txt")


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), AssertionError("odd\nmarkup")])
def test_whatever_a_parser_raises_is_one_document_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(registry.html, "pages", Mock(side_effect=error))
    assert "a: the file is damaged or of another kind" in refusal(b"<html>x", "a")


def test_size_limits() -> None:
    assert "larger than 4 bytes" in refusal(b"12345", "a.txt", max_bytes=4)
    assert "more than the limit of 4 characters of text;" in refusal(b"12345", "a.txt", max_characters=4)
    assert "4 characters of text (reached on page 2)" in refusal(make_pdf(["Fee", "Five"]), "a.pdf", max_characters=4)


def test_content_comes_before_the_suffix() -> None:
    data = make_pdf(["Alpha"])
    for name in ("a.txt", "a.md", "stdin", "noext"):
        assert read_document(data, name).text == "Alpha"
    assert read_document(b"\n" * 500 + data, "a.bin").text == "Alpha"
    assert read_document(b"A PDF starts with %PDF- and a version.", "a.txt").text.startswith("A PDF")
    assert read_document(b"<!doctype html><p>x", "stdin").text == "x"
    assert read_document(b"<html>x", "a.md").text == "<html>x"


def test_utf8_with_a_cut_or_stray_byte_stays_utf8() -> None:
    text = "Die Gebühr beträgt fünf Euro für große Räume. "
    for data in ((text * 3 + "Tür").encode()[:-2], (text * 3).encode() + b"stray \xe9 byte"):
        document = read_document(data, "a.txt")
        assert document.text.startswith(text.strip())
        assert "damaged UTF-8" in document.warnings[0]
    page = b'<html><head><meta charset="utf-8"></head><body><p>Caf\xc3\xa9 \xff</p></body></html>'
    assert read_document(page, "a.html").text.startswith("Café")
