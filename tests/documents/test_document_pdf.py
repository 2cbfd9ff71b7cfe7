"""PDFs: text by page, and failures."""

import importlib
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pypdf
import pytest
from fpdf import FPDF
from fpdf.enums import EncryptionMethod
from PIL import Image
from pypdfium2 import PdfiumError

from specprefill_cli.documents import extras
from specprefill_cli.documents.reader import LIMITS, SourceFile
from specprefill_cli.documents.registry import read_document
from specprefill_cli.errors import DocumentError
from tests.helpers.document_files import make_pdf, page_texts, refusal

TEXTS = ["Alpha starts here.", "Beta is the second page.", "Gamma ends it."]


@pytest.fixture(autouse=True)
def no_recognition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "can_recognise", lambda: False)


@pytest.fixture
def recogniser(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The pictures that a recogniser gets, which reads a line of two boxes in each."""
    pictures: list[object] = []
    boxes = np.array([[[60, 9], [90, 9], [90, 19], [60, 19]], [[10, 10], [50, 10], [50, 20], [10, 20]]])

    def recognise(picture: object) -> SimpleNamespace:
        pictures.append(picture)
        return SimpleNamespace(boxes=boxes, txts=("1931.", "Built in"))

    monkeypatch.setattr(extras, "can_recognise", lambda: True)
    monkeypatch.setattr(extras, "recogniser", lambda: recognise)
    return pictures


def test_scanned_pages_and_pictures_are_recognised(recogniser: list[object]) -> None:
    document = read_document(make_pdf(["Alpha", None]), "report.pdf")
    assert document.text == "Alpha\n\nBuilt in 1931."
    assert document.warnings == ("the text of page 2 was recognised in pictures; check numbers and names",)
    picture = b"\x89PNG\r\n\x1a\nrest"
    assert read_document(picture, "a.png").text == "Built in 1931."
    assert len(recogniser) == 2


def test_a_line_of_text_on_a_scanned_page_is_not_all(monkeypatch: pytest.MonkeyPatch, recogniser: list[object]) -> None:
    file = FPDF()
    file.add_page()
    file.image(Image.new("RGB", (8, 8), "white"), 0, 0, file.w, file.h)
    file.set_font("helvetica", size=12)
    file.cell(text="Exhibit 7")
    assert read_document(bytes(file.output()), "a.pdf").text == "Built in 1931."
    monkeypatch.setattr(extras, "recogniser", lambda: importlib.import_module("missing_library"))
    broken = read_document(bytes(file.output()), "a.pdf")
    monkeypatch.setattr(extras, "can_recognise", lambda: False)
    document = read_document(bytes(file.output()), "a.pdf")
    assert broken.text == document.text == "Exhibit 7"
    assert "hardly any text on page 1" in broken.warnings[0]
    assert "missing_library" in broken.warnings[0]
    assert document.warnings[0].startswith("hardly any text on page 1 (scanned?); run OCR")


def test_pages_have_their_text_and_range() -> None:
    steps: list[str] = []
    document = read_document(make_pdf(TEXTS), "report.pdf", step=steps.append)
    assert steps == [f"reading report.pdf: page {page} of 3" for page in (1, 2, 3)]
    assert page_texts(document) == TEXTS
    assert document.text == "\n\n".join(TEXTS)
    assert (document.name, document.warnings) == ("report.pdf", ())
    paragraph = "The lazy dog sleeps while the quick brown fox jumps over it. " * 6
    assert read_document(make_pdf([paragraph]), "a.pdf").text == paragraph.strip()


@pytest.mark.parametrize("method", [EncryptionMethod.RC4, EncryptionMethod.AES_256])
def test_an_encrypted_pdf_is_refused_unless_its_user_password_is_empty(method: EncryptionMethod) -> None:
    document = read_document(make_pdf(TEXTS, owner="secret", method=method), "report.pdf")
    assert document.text == "\n\n".join(TEXTS)
    message = refusal(make_pdf(TEXTS, password="open", owner="secret", method=method), "report.pdf")
    assert "the PDF is encrypted; remove the password first (for example: qpdf" in message


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95, None])
def test_a_truncated_or_damaged_pdf_is_refused(share: float | None) -> None:
    data = make_pdf(TEXTS)
    garbage = b"%PDF-1.7\n" + b"garbage " * 50 + b"startxref\n0\n%%EOF"
    assert "the PDF is damaged" in refusal(data[: int(len(data) * share)] if share else garbage, "report.pdf")


@pytest.mark.parametrize("filter_name", ["JBIG2Decode", "A85"])
def test_a_page_in_an_unsupported_encoding_is_a_warning(filter_name: str) -> None:
    data = make_pdf(TEXTS).replace(b"/Filter /FlateDecode", f"/Filter /{filter_name}".ljust(20).encode(), 1)
    document = read_document(data, "report.pdf")
    assert document.text == f"{TEXTS[1]}\n\n{TEXTS[2]}"
    assert any("page 1" in warning for warning in document.warnings)


# Beside its own PyPdfError, pypdf raises errors of other families on hostile files.
@pytest.mark.parametrize("error", [KeyError("/Font"), RecursionError()], ids=["key", "recursion"])
def test_the_other_pages_survive_whatever_pypdf_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fail_on_page(monkeypatch, 2, error)
    document = read_document(make_pdf(TEXTS), "report.pdf")
    assert document.text == f"{TEXTS[0]}\n\n{TEXTS[2]}"
    (warning,) = document.warnings
    assert warning.startswith("page 2 could not be read (")
    assert (str(error) or type(error).__name__) in warning
    fail_on_page(monkeypatch, 1, error)
    assert "page 1 could not be read (" in refusal(make_pdf(TEXTS[:1]), "report.pdf")


def test_pages_without_text_are_a_warning_and_without_any_text_an_error() -> None:
    remedy = "(scanned?); run OCR first, for example ocrmypdf, or install recognition"
    document = read_document(make_pdf([None, "Alpha", None, None, "Beta"]), "report.pdf")
    assert document.warnings[0].startswith(f"no text on pages 1, 3-4 {remedy}")
    assert document.text == "Alpha\n\nBeta"
    message = refusal(make_pdf([None, None, None]), "report.pdf")
    assert message.startswith(f"report.pdf: no text on pages 1-3 {remedy}")
    assert "pip install rapidocr" in message


def test_repaired_damage_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    data = make_pdf(TEXTS)
    broken = data.replace(b"startxref\n", b"startxref\n9", 1)
    assert broken != data
    assert read_document(broken, "report.pdf").text == "\n\n".join(TEXTS)
    refusal(data[:900], "report.pdf")
    assert capfd.readouterr() == ("", "")


EXTRACT = pypdf.PageObject.extract_text


def fail_on_page(monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> None:
    def fail(page: pypdf.PageObject) -> str:
        if page.page_number == number - 1:
            raise error
        return EXTRACT(page)

    monkeypatch.setattr("pypdfium2.PdfDocument", Mock(side_effect=PdfiumError("damaged")))
    monkeypatch.setattr(pypdf.PageObject, "extract_text", fail)


def test_a_file_whose_pages_stop_coming_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    released, add_page = Event(), SourceFile.add_page

    def stop_after_two(file: SourceFile, text: str) -> None:
        add_page(file, text)
        if len(file.texts) == 2:
            released.wait()

    monkeypatch.setattr(SourceFile, "add_page", stop_after_two)
    monkeypatch.setattr(LIMITS, "max_seconds", 0.3)
    with pytest.raises(DocumentError, match=r"no further page within 0.3 s \(2 read\)"):
        read_document(make_pdf(TEXTS), "report.pdf")
    released.set()
