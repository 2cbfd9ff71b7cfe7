"""What a reader of one file format looks like, and the limits it must keep."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specprefill_cli.documents.document import Document


@dataclass(frozen=True)
class Limits:
    """Guards against files that would exhaust memory or time; a file beyond one is refused, never cut.

    The defaults are far above what a prompt can hold and far below what harms a laptop: 5000 pages and
    20 million characters are about forty long novels.
    """

    max_bytes: int = 256 * 2**20  # size of the file, in bytes
    max_pages: int = 5000  # pages, slides, sheets or chapters
    max_characters: int = 20_000_000  # characters of the extracted text
    max_seconds: float = 120.0  # wall-clock seconds for parsing a PDF, an HTML page or an office file
    max_unpacked_bytes: int = 512 * 2**20  # size of an office file when unpacked, in bytes
    max_xml_bytes: int = 200 * 2**20  # of that in XML, whose trees take several times as much memory
    max_entries: int = 20_000  # parts of an office file


class Reader(Protocol):
    """One file format: the suffixes it claims (lower case, with the dot) and how its bytes become a document."""

    @property
    def suffixes(self) -> tuple[str, ...]: ...

    @property
    def media_type(self) -> str: ...

    def read(self, data: bytes, name: str, limits: Limits) -> Document:
        """The document in ``data``; ``name`` is its name in messages. Raises DocumentError."""
        ...


@dataclass(frozen=True)
class FormatReader:
    """A reader made of a function; the module of each format defines one."""

    suffixes: tuple[str, ...]
    media_type: str
    read: Callable[[bytes, str, Limits], Document]
