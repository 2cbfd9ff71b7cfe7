"""What a reader of one file format is, and the limits that it must keep."""

from collections.abc import Callable
from dataclasses import dataclass

from specprefill_cli.documents.document import Document


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Guards against files that would exhaust memory or time; a file beyond a limit is refused, never cut.

    The defaults are far above what a prompt can hold and far below what harms a laptop.
    """

    max_bytes: int = 256 * 2**20  # size of the file, in bytes
    max_pages: int = 5000  # pages, slides, sheets or chapters
    max_characters: int = 20_000_000  # characters of the extracted text
    max_seconds: float = 120.0  # wall-clock seconds for parsing
    max_unpacked_bytes: int = 512 * 2**20  # size of an office file when unpacked, in bytes
    max_xml_bytes: int = 200 * 2**20  # XML in an office file, in bytes: its trees take several times as much memory
    max_entries: int = 20_000  # parts of an office file


@dataclass(frozen=True)
class FormatReader:
    """A reader of one format; every format's module defines one as `READER`.

    suffixes: those it claims, lower case and with the dot
    read: takes the file's bytes, its name for messages, and the limits; returns the document or raises `DocumentError`.
        Whatever else it raises is reported as a damaged file
    """

    suffixes: tuple[str, ...]
    media_type: str
    read: Callable[[bytes, str, Limits], Document]
