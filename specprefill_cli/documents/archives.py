"""Office formats are ZIP archives: guards against hostile ones, and the frame that their readers share."""

from __future__ import annotations

import importlib
import threading
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from types import ModuleType
from zipfile import ZipFile

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.deadline import check_stop, run_with_deadline
from specprefill_cli.documents.document import Document, join_pages
from specprefill_cli.documents.errors import document_error, one_line
from specprefill_cli.documents.reader import Limits
from specprefill_cli.installation import install_command

MARKUP_SUFFIXES = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm")
# The lines of each page. A reader gets a list to which it may add warnings.
Pages = Iterator[Iterable[str]]
ReadPages = Callable[[BytesIO, list[str]], Pages]


def archive_document(data: bytes, name: str, limits: Limits, media_type: str, read_pages: ReadPages) -> Document:
    """Build a document from an archive whose pages `read_pages` yields.

    Raises DocumentError for an archive that unpacks to more than the limits allow, TimeoutError for one that takes too
    long, and whatever the parser raises for a damaged one.
    """
    check_archive(data, name, limits)
    warnings: list[str] = []
    with python_warnings.catch_warnings():
        # openpyxl warns about parts that it would not write back, which is no loss here.
        python_warnings.simplefilter("ignore")
        texts = run_with_deadline(
            lambda stop: page_texts(read_pages(BytesIO(data), warnings), name, limits, stop), limits.max_seconds
        )
    text, pages = join_pages(texts)
    return Document(name, text, pages, media_type, tuple(map(one_line, warnings)))


def check_archive(data: bytes, name: str, limits: Limits) -> None:
    """Raise DocumentError for a ZIP bomb, judged by the sizes that the archive declares.

    zipfile never unpacks more of an entry than its declared size.
    """
    with ZipFile(BytesIO(data)) as archive:
        entries = archive.infolist()
    xml = sum(entry.file_size for entry in entries if entry.filename.lower().endswith(MARKUP_SUFFIXES))
    sizes = (
        (sum(entry.file_size for entry in entries), limits.max_unpacked_bytes, "bytes"),
        (xml, limits.max_xml_bytes, "bytes of XML"),
        (len(entries), limits.max_entries, "parts"),
    )
    for size, limit, unit in sizes:
        if size > limit:
            raise document_error(name, f"unpacks to {size:,} {unit}, the limit is {limit:,}", "split it")


def page_texts(pages: Iterable[Iterable[str]], name: str, limits: Limits, stop: threading.Event) -> list[str]:
    """Return the cleaned text of each page, given its lines.

    Raises DocumentError as soon as there are more pages or characters than the limits allow, since a small file can
    repeat a long string many times, and Abandoned once `stop` is set.
    """
    texts: list[str] = []
    characters = 0
    for lines in pages:
        kept = []
        for line in lines:
            check_stop(stop)
            characters += len(line) + 1
            if characters > limits.max_characters:
                cause = f"more than {limits.max_characters:,} characters of text, which is the limit"
                raise document_error(name, cause, "split it into smaller files")
            kept.append(line.rstrip())
        texts.append(collapse_blank_lines(clean_characters("\n".join(kept))).strip("\n"))
        if len(texts) > limits.max_pages:
            raise document_error(name, f"more than {limits.max_pages:,} pages, which is the limit", "split it")
    return texts


def row_text(cells: Iterable[str]) -> str:
    """Write a table row as `a | b`; empty cells before a filled one keep their bars, so that columns stay aligned."""
    texts = [" ".join(cell.split()) for cell in cells]
    while texts and not texts[-1]:
        texts.pop()
    return " ".join(" | ".join(texts).split())


def office_module(module: str, name: str, kind: str) -> ModuleType:
    """Import a package of the extra `office`. Raises DocumentError that names the extra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise document_error(
            name, f"reading {kind} needs more packages", f"install them with {install_command('office')}"
        ) from error
