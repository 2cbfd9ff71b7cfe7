"""Office formats are ZIP archives: guards against hostile ones, and what their readers share."""

import importlib
from collections.abc import Iterable
from io import BytesIO
from types import ModuleType
from zipfile import ZipFile

from specprefill_cli.documents.reader import SourceFile
from specprefill_cli.installation import install_command

MARKUP_SUFFIXES = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm")


def checked_archive(file: SourceFile) -> BytesIO:
    """Return the archive's bytes as a stream. Raises DocumentError for a ZIP bomb, judged by the sizes it declares.

    zipfile never unpacks more of an entry than its declared size.
    """
    stream = BytesIO(file.data)
    with ZipFile(stream) as archive:
        entries = archive.infolist()
    xml = sum(entry.file_size for entry in entries if entry.filename.lower().endswith(MARKUP_SUFFIXES))
    sizes = (
        (sum(entry.file_size for entry in entries), file.limits.max_unpacked_bytes, "bytes"),
        (xml, file.limits.max_xml_bytes, "bytes of XML"),
        (len(entries), file.limits.max_entries, "parts"),
    )
    for size, limit, unit in sizes:
        if size > limit:
            raise file.error(f"unpacks to {size:,} {unit}, the limit is {limit:,}", "split it")
    return stream


def row_text(cells: Iterable[str]) -> str:
    """Write a table row as `a | b`; empty cells before a filled one keep their bars, so that columns stay aligned."""
    texts = [" ".join(cell.split()) for cell in cells]
    while texts and not texts[-1]:
        texts.pop()
    return " ".join(" | ".join(texts).split())


def office_module(file: SourceFile, module: str, kind: str) -> ModuleType:
    """Import a package of the extra `office`. Raises DocumentError that names the extra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        remedy = f"install them with {install_command('office')}"
        raise file.error(f"reading {kind} needs more packages", remedy) from error
