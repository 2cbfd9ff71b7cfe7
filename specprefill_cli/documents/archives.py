"""Office formats are ZIP archives: guards against hostile ones, and the frame that all their readers share."""

from __future__ import annotations

import importlib
import threading
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from types import ModuleType
from zipfile import BadZipFile, ZipFile

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.deadline import run_with_deadline
from specprefill_cli.documents.document import Document, join_pages
from specprefill_cli.documents.errors import DocumentError, document_error, one_line
from specprefill_cli.documents.reader import Limits

MARKUP_SUFFIXES = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm")
# The lines of each page. A reader gets a list to which it may add warnings.
Pages = Iterator[Iterable[str]]
ReadPages = Callable[[BytesIO, list[str]], Pages]


def archive_document(data: bytes, name: str, limits: Limits, media_type: str, read_pages: ReadPages) -> Document:
    """A document from an archive whose pages `read_pages` yields.

    Raises DocumentError: damaged, larger when unpacked than the limits allow, or too slow to read.
    """
    check_archive(data, name, limits)
    warnings: list[str] = []
    try:
        with python_warnings.catch_warnings():
            # openpyxl warns of parts that it would not write back, bs4 that chapters look like XML: no loss here.
            python_warnings.simplefilter("ignore")
            texts = run_with_deadline(
                lambda stop: page_texts(read_pages(BytesIO(data), warnings), name, limits, stop), limits.max_seconds
            )
    except DocumentError:
        raise
    except TimeoutError:
        raise document_error(name, f"reading took longer than {limits.max_seconds:g} s", "split the file") from None
    except Exception as error:
        # What the parsers raise on damaged files is not documented: lookups, values, XML, ZIP, zlib.
        raise damaged(name, error) from error
    text, pages = join_pages(texts)
    return Document(name, text, pages, media_type, tuple(map(one_line, warnings)))


def check_archive(data: bytes, name: str, limits: Limits) -> None:
    """Raises DocumentError for an archive that is damaged, or a bomb.

    The sizes are those that the archive declares: zipfile never unpacks more of an entry than that.
    """
    try:
        with ZipFile(BytesIO(data)) as archive:
            entries = archive.infolist()
    except (BadZipFile, ValueError, NotImplementedError) as error:
        raise damaged(name, error) from error
    xml = sum(entry.file_size for entry in entries if entry.filename.lower().endswith(MARKUP_SUFFIXES))
    found = (
        (sum(entry.file_size for entry in entries), limits.max_unpacked_bytes, "bytes"),
        (xml, limits.max_xml_bytes, "bytes of XML"),
        (len(entries), limits.max_entries, "parts"),
    )
    for size, limit, what in found:
        if size > limit:
            raise document_error(name, f"unpacks to {size:,} {what}, the limit is {limit:,}", "split it")


def page_texts(pages: Iterable[Iterable[str]], name: str, limits: Limits, stop: threading.Event) -> list[str]:
    """The cleaned text of each page, from its lines; ends early once `stop` is set.

    Raises DocumentError as soon as there are more pages or characters than the limits allow: a small file can repeat
    one long string any number of times.
    """
    texts, characters = [], 0
    for lines in pages:
        kept = []
        for line in lines:
            characters += len(line) + 1
            if characters > limits.max_characters:
                what = f"more than {limits.max_characters:,} characters of text, which is the limit"
                raise document_error(name, what, "split it into smaller files")
            if stop.is_set():
                return texts
            kept.append(line.rstrip())
        texts.append(collapse_blank_lines(clean_characters("\n".join(kept))).strip("\n"))
        if len(texts) > limits.max_pages:
            raise document_error(name, f"more than {limits.max_pages:,} pages, which is the limit", "split it")
    return texts


def row_text(cells: Iterable[str]) -> str:
    """A table's row as ``a | b``; empty cells before a filled one keep their bars, so that columns stay aligned."""
    filled = [" ".join(cell.split()) for cell in cells]
    while filled and not filled[-1]:
        filled.pop()
    return " ".join(" | ".join(filled).split())


def office_module(module: str, name: str, kind: str) -> ModuleType:
    """A package of the extra `office`. Raises DocumentError that names the extra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise document_error(
            name, f"reading {kind} needs more packages", "pip install 'specprefill[office]'"
        ) from error


def damaged(name: str, error: Exception) -> DocumentError:
    reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    return document_error(name, f"the file is damaged or of another kind ({reason})", "open it and save it again")
