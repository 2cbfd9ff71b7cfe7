"""Text of pictures: optical character recognition through rapidocr, an optional package with its own models."""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from importlib.util import find_spec
from typing import Any

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.documents.layout import lines_of
from specprefill_cli.documents.pieces import Piece
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.errors import pip_command

SUFFIXES = (".png", ".jpg", ".jpeg")
SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
INSTALL = pip_command("rapidocr", "onnxruntime")
DOTS_PER_INCH = 150
LOCK = threading.Lock()


def is_installed() -> bool:
    """Whether the packages for recognition are there."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


@cache
def engine() -> Any:
    """The recogniser with its packaged models."""
    from rapidocr import RapidOCR

    recogniser = RapidOCR()
    logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)
    return recogniser


def recognised_text(file: SourceFile, picture: Any) -> str:
    """The text of a picture, an array of pixels or a file's bytes, in reading order; its time does not count as reading."""
    begin = time.monotonic()
    with LOCK:
        result = engine()(picture)
    pieces = []
    for box, text in zip(result.boxes if result.boxes is not None else (), result.txts or (), strict=True):
        (left, top), (right, bottom) = box.min(0).tolist(), box.max(0).tolist()
        pieces.append(Piece(text.strip(), left, right, -bottom, bottom - top))
    file.excused_seconds += time.monotonic() - begin
    rows: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: -piece.base):
        if rows and rows[-1][0].is_level(piece.base):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return lines_of(piece for row in rows for piece in sorted(row, key=lambda piece: piece.left))


def pages(file: SourceFile) -> Pages:
    """Yield the text of a picture. Raises DocumentError without the package."""
    if not is_installed():
        raise file.error("reading pictures needs another package", f"install it with {INSTALL}")
    file.warnings.append("its text was recognised in a picture; check numbers and names")
    yield clean_text(recognised_text(file, file.data))
