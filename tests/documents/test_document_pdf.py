"""PDFs: text by page, and the ways in which a PDF can fail."""

import io
import itertools
import logging
import threading
import time
import zlib
from collections.abc import Iterator

import pypdf
import pytest
from fpdf.enums import EncryptionMethod
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from specprefill_cli.documents import DocumentError, Limits, pdf, read_document
from specprefill_cli.documents.reader import Abandoned, SourceFile
from specprefill_cli.documents.registry import read_pages

TEXTS = ["Alpha starts here.", "Beta is the second page.", "Gamma ends it."]


def refusal(data: bytes, limits: Limits | None = None) -> str:
    with pytest.raises(DocumentError) as caught:
        read_document(data, "report.pdf", limits)
    message = str(caught.value)
    assert message.startswith("report.pdf: ")
    assert message.isprintable()
    return message


def test_pages_have_their_text_and_range(make_pdf) -> None:
    document = read_document(make_pdf(TEXTS), "report.pdf")
    assert [document.text[page.start : page.end] for page in document.pages] == TEXTS
    assert document.text == "\n\n".join(TEXTS)
    assert (document.name, document.media_type, document.warnings) == ("report.pdf", "application/pdf", ())
    start = document.text.index("second")
    assert document.pages_between(start, start + 6) == (2,)
    assert document.pages_between(0, len(document.text)) == (1, 2, 3)


def test_lines_of_a_paragraph_are_joined(make_pdf) -> None:
    paragraph = "The lazy dog sleeps while the quick brown fox jumps over it. " * 6
    assert read_document(make_pdf([paragraph]), "a.pdf").text == paragraph.strip()


@pytest.mark.parametrize("method", [EncryptionMethod.RC4, EncryptionMethod.AES_128, EncryptionMethod.AES_256])
def test_an_empty_user_password_opens_the_pdf(make_pdf, method: EncryptionMethod) -> None:
    document = read_document(make_pdf(TEXTS, owner="secret", method=method), "report.pdf")
    assert document.text == "\n\n".join(TEXTS)


@pytest.mark.parametrize("method", [EncryptionMethod.RC4, EncryptionMethod.AES_256])
def test_an_encrypted_pdf_is_refused(make_pdf, method: EncryptionMethod) -> None:
    message = refusal(make_pdf(TEXTS, password="open", owner="secret", method=method))
    assert "the PDF is encrypted; remove the password first" in message
    assert "qpdf" in message


def test_a_missing_package_is_named(make_pdf, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise pypdf.errors.DependencyError("cryptography is required for AES algorithm")

    monkeypatch.setattr(pypdf.PdfReader, "__init__", missing)
    assert "needs a package that is not installed (cryptography is required for AES algorithm)" in refusal(
        make_pdf(TEXTS)
    )


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_truncated_pdf_is_refused(make_pdf, share: float) -> None:
    data = make_pdf(TEXTS)
    assert "truncated" in refusal(data[: int(len(data) * share)])


def test_a_damaged_pdf_is_refused(make_pdf) -> None:
    assert "the PDF is damaged" in refusal(b"%PDF-1.7\n" + b"garbage " * 50 + b"startxref\n0\n%%EOF")


@pytest.mark.parametrize("filter_name", ["JBIG2Decode", "A85"])
def test_a_page_in_an_unsupported_encoding_is_a_warning(make_pdf, filter_name: str) -> None:
    data = make_pdf(TEXTS).replace(b"/Filter /FlateDecode", f"/Filter /{filter_name}".ljust(20).encode(), 1)
    document = read_document(data, "report.pdf")
    assert document.text == f"{TEXTS[1]}\n\n{TEXTS[2]}"
    assert any("page 1" in warning for warning in document.warnings)


# Beside its own PyPdfError, pypdf raises errors of other families on hostile files.
PAGE_ERRORS = [
    pypdf.errors.PdfStreamError("unexpected end"),
    pypdf.errors.LimitReachedError("too large"),
    pypdf.errors.DependencyError("jbig2dec binary is not available."),
    pypdf.errors.DeprecationError("The filter name /A85 is deprecated."),
    KeyError("/Font"),
    RecursionError(),
    ZeroDivisionError("x"),
    MemoryError(),
    NotImplementedError("unsupported filter /X"),
    zlib.error("incorrect header check"),
]


@pytest.mark.parametrize("error", PAGE_ERRORS, ids=lambda error: type(error).__name__)
def test_the_other_pages_survive_whatever_pypdf_raises(
    make_pdf, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_on_page(monkeypatch, 2, error)
    document = read_document(make_pdf(TEXTS), "report.pdf")
    assert document.text == f"{TEXTS[0]}\n\n{TEXTS[2]}"
    (warning,) = document.warnings
    assert warning.startswith("page 2 could not be read (")
    assert (str(error) or type(error).__name__) in warning


@pytest.mark.parametrize("error", PAGE_ERRORS, ids=lambda error: type(error).__name__)
def test_a_pdf_that_cannot_be_opened_is_refused(make_pdf, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(pypdf.PdfReader, "__init__", fail)
    assert (str(error) or type(error).__name__) in refusal(make_pdf(TEXTS))


@pytest.mark.parametrize("error", PAGE_ERRORS, ids=lambda error: type(error).__name__)
def test_a_pdf_without_a_readable_page_is_refused(make_pdf, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fail_on_page(monkeypatch, 1, error)
    assert "no text can be read from the PDF: page 1 could not be read" in refusal(make_pdf(TEXTS[:1]))


@pytest.mark.parametrize(
    "operators",
    [
        b"[(Hel) Tj (lo)] TJ",
        b"[(Hel) 12 Tw (lo) ' /F1 1 Tf] TJ",
        b"[(Hel) ET (lo) TJ",
        b"[[(Hel) (lo)] TJ",
        b"(Hello) Tj } { >> ) ]",
        b"(Hello) Tj (unclosed",
        b"(Hello) Tj <0 % [",
        b"1 BI /W 1 /H 1 ID [ EI Q (Hello) Tj",
    ],
)
def test_malformed_tokens_do_not_cost_the_page(operators: bytes) -> None:
    contents = b"BT /F1 12 Tf 72 700 Td (\\(see \\(b\\)\\) (it) ) Tj " + operators + b" ET"
    document = read_document(with_contents(contents), "a.pdf")
    assert document.text == "(see (b)) (it) Hello"
    (warning,) = document.warnings
    assert warning.startswith("page 1 had to be repaired, text may be missing or wrong (")


@pytest.mark.parametrize("hostile", [b"(", b"(\\(", b"(()", b"<0", b"[", b"BI ", b"BI EI ", b"(\\(\\(((", b"/", b"%"])
def test_time_of_repairs_is_linear(hostile: bytes) -> None:
    def seconds(length: int) -> float:
        contents = hostile * (length // len(hostile))
        start = time.process_time()
        pdf.well_formed(contents)
        return time.process_time() - start

    short, long = (min(seconds(length) for _ in range(5)) for length in (25_000, 200_000))
    assert long < 40 * short


def test_a_scanned_pdf_is_refused(make_pdf) -> None:
    message = refusal(make_pdf([None, None, None]))
    assert message == "report.pdf: pages 1-3 hold no text (scanned?); run OCR first, for example ocrmypdf"


def test_scanned_pages_are_a_warning(make_pdf) -> None:
    document = read_document(make_pdf([None, "Alpha", None, None, "Beta"]), "report.pdf")
    assert document.warnings == ("pages 1, 3-4 hold no text (scanned?); run OCR first, for example ocrmypdf",)
    assert document.text == "Alpha\n\nBeta"


def test_repaired_damage_is_a_warning(make_pdf) -> None:
    data = make_pdf(TEXTS)
    broken = data.replace(b"startxref\n", b"startxref\n9", 1)
    assert broken != data
    document = read_document(broken, "report.pdf")
    assert document.text == "\n\n".join(TEXTS)
    assert "text may be missing or wrong" in document.warnings[0]


def test_a_pdf_beyond_the_limits_is_refused(make_pdf) -> None:
    assert "3 pages, the limit is 2" in refusal(make_pdf(TEXTS), Limits(max_pages=2))
    assert "the limit of 20 characters of text (reached on page 2)" in refusal(
        make_pdf(TEXTS), Limits(max_characters=20)
    )
    assert "larger than 100 bytes" in refusal(make_pdf(TEXTS), Limits(max_bytes=100))


@pytest.mark.slow
def test_a_page_that_takes_too_long_is_refused(make_pdf, monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    extract = pypdf.PageObject.extract_text

    def hang(page: pypdf.PageObject, **options: object) -> str:
        if page.page_number == 1:
            forever.wait()
        return extract(page, **options)

    monkeypatch.setattr(pypdf.PageObject, "extract_text", hang)
    try:
        message = refusal(make_pdf(TEXTS), Limits(max_seconds=2))
    finally:
        forever.set()
    assert "reading took longer than 2 s (page 1 of 3 read)" in message


def test_an_abandoned_parser_stops_inside_the_page(make_pdf) -> None:
    class StopOnSecondPage(threading.Event):
        def is_set(self) -> bool:
            return len(file.texts) == 1 and next(checks) > 3

    checks = itertools.count()
    file = SourceFile(make_pdf(TEXTS), "report.pdf", Limits(), StopOnSecondPage())
    with pytest.raises(Abandoned):
        read_pages(pdf.READER, file)
    assert file.texts == TEXTS[:1]
    assert next(checks) == 5  # checked at each of the page's operators


@pytest.fixture
def shown() -> Iterator[list[logging.LogRecord]]:
    """What reaches the root logger; `caplog` also takes what a logger keeps to itself."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


def test_pypdf_stays_quiet_while_an_abandoned_parser_ends(shown) -> None:
    child = logging.getLogger("pypdf._reader")
    abandoned, current = pdf.pypdf_complaints(), pdf.pypdf_complaints()
    abandoned.__enter__()
    with current as complaints:
        other = threading.Thread(target=child.warning, args=("of another thread",))
        other.start()
        other.join()
        abandoned.__exit__(None, None, None)
        child.warning("of this one")
    assert complaints == ["of this one"]
    assert not shown


def test_pypdf_is_quiet(make_pdf, capfd, shown) -> None:
    read_document(make_pdf(TEXTS).replace(b"startxref\n", b"startxref\n9", 1), "report.pdf")
    refusal(make_pdf(TEXTS)[:900])
    logging.getLogger("pypdf._reader").warning("of a parser that is out of time")
    assert capfd.readouterr() == ("", "")
    assert not shown


def with_contents(contents: bytes) -> bytes:
    """A PDF of one page with this content stream."""
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(612, 792)
    font = {NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1")}
    font[NameObject("/BaseFont")] = NameObject("/Helvetica")
    fonts = DictionaryObject({NameObject("/F1"): DictionaryObject(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    stream = DecodedStreamObject()
    stream.set_data(contents)
    page[NameObject("/Contents")] = stream
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def fail_on_page(monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> None:
    extract = pypdf.PageObject.extract_text

    def fail(page: pypdf.PageObject, **options: object) -> str:
        if page.page_number == number - 1:
            raise error
        return extract(page, **options)

    monkeypatch.setattr(pypdf.PageObject, "extract_text", fail)


def test_pages_are_counted_while_they_are_read(make_pdf) -> None:
    steps: list[str] = []
    read_document(make_pdf(["One.", "Two.", "Three."]), "a.pdf", step=steps.append)
    assert steps == [f"reading a.pdf: page {page} of 3" for page in (1, 2, 3)]
