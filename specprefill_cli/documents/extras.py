"""Formats that optional packages read: old Office files with kreuzberg, pictures with rapidocr."""

import html
import logging
import re
import threading
from functools import cache
from importlib.util import find_spec
from typing import Any

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.documents.layout import grouped, lines_of
from specprefill_cli.documents.pieces import Piece
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.documents.text import labelled_tables
from specprefill_cli.errors import pip_command

OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# The streams of old Office files: a message may hold the others.
STREAMS = {
    "__properties_version1.0": "application/vnd.ms-outlook",
    "PowerPoint Document": "application/vnd.ms-powerpoint",
    "WordDocument": "application/msword",
    "Workbook": "application/vnd.ms-excel",
}
FOREIGN_SUFFIXES = (".rtf", ".doc", ".xls", ".ppt", ".msg")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")
PICTURE_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
INSTALL = pip_command("rapidocr", "onnxruntime")
LOCK = threading.Lock()


def foreign_type(data: bytes) -> str | None:
    """The media type of a file that kreuzberg reads; None for any other."""
    if data.startswith(b"{\\rtf"):
        return "application/rtf"
    streams = STREAMS.items() if data.startswith(OLD_OFFICE) else ()
    return next((kind for name, kind in streams if name.encode("utf-16-le") in data), None)


def foreign_pages(file: SourceFile) -> Pages:
    """Yield the text as Markdown, tables with the names of their columns. Raises DocumentError without the package."""
    kind = foreign_type(file.data) or ""
    kreuzberg = file.package("kreuzberg", "this format", ", or save the file as PDF, HTML, Markdown or UTF-8 text")
    config = kreuzberg.ExtractionConfig(use_cache=False, output_format="markdown")
    # The package reads RTF's no-break space as a tilde.
    data = re.sub(rb"(?<!\\)((?:\\\\)*)\\~", rb"\1\\u160?", file.data) if kind == "application/rtf" else file.data
    text = labelled_tables(kreuzberg.extract_bytes_sync(data, kind, config=config).content, is_sure=False)
    yield re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", html.unescape(text)).strip()


def can_recognise() -> bool:
    """Whether the packages for recognition of characters are there."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def installed_packages() -> str:
    """Which packages for further formats are there, a digit each: with another one, a document may have more text."""
    names = ("rapidocr", "onnxruntime", "openpyxl", "kreuzberg")
    return "".join(str(int(find_spec(name) is not None)) for name in names)


@cache
def recogniser() -> Any:
    """The recogniser with its packaged models."""
    from rapidocr import RapidOCR

    engine = RapidOCR()
    logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)
    return engine


def recognised_text(picture: Any) -> str:
    """The text of a picture, an array of pixels or a file's bytes, in reading order."""
    with LOCK:
        result = recogniser()(picture)
    pieces = []
    for box, text in zip(result.boxes if result.boxes is not None else (), result.txts or (), strict=True):
        (left, top), (right, bottom) = box.min(0).tolist(), box.max(0).tolist()
        pieces.append(Piece(text.strip(), left, right, -bottom, bottom - top))
    rows = grouped(sorted(pieces, key=lambda piece: -piece.base), lambda row, piece: row[0].is_level(piece.base))
    return lines_of(piece for row in rows for piece in sorted(row, key=lambda piece: piece.left))


def picture_pages(file: SourceFile) -> Pages:
    """Yield the text of a picture. Raises DocumentError without the package."""
    if not can_recognise():
        raise file.error("reading pictures needs another package", f"install it with {INSTALL}")
    file.warnings.append("its text was recognised in a picture; check numbers and names")
    yield clean_text(recognised_text(file.data))
