"""Sources named by the user -> documents."""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import Document
from specprefill_cli.documents.errors import DocumentError, document_error, one_line
from specprefill_cli.documents.reader import Limits
from specprefill_cli.documents.registry import KNOWN_SUFFIXES, read_document
from specprefill_cli.documents.sources import STANDARD_INPUT, expand_source

# Pipes that a shell makes have their writer at once.
PATIENCE_SECONDS = 1.0


def read_documents(
    sources: Sequence[str], *, strict: bool = False, stdin: BinaryIO | None = None, limits: Limits | None = None
) -> list[Document]:
    """Read the documents that `sources` name, in that order, each file once however often it is named.

    A source is a file, a folder (recursively, sorted, known suffixes only), a glob pattern (`**` included) or `-` for
    `stdin` (default: the process's standard input). A document is named by its path as the source spells it, standard
    input `stdin`. A file of a folder or pattern that cannot be read is a Python warning, with `strict` an error.
    Raises DocumentError for the first source that cannot be read.
    """
    collection = read_collection(sources, strict=strict, stdin=stdin, limits=limits)
    for skipped in collection.skipped:
        warnings.warn(skipped, stacklevel=2)
    return list(collection.documents)


def read_collection(
    sources: Sequence[str],
    *,
    strict: bool = False,
    stdin: BinaryIO | None = None,
    limits: Limits | None = None,
    tell: Callable[[str], None] = lambda _text: None,
    step: Callable[[str], None] = lambda _text: None,
) -> Collection:
    """Read the documents of `read_documents` as one collection, which also tells what was skipped.

    tell: shows what is being waited for; step: shows how far a reader came, page by page
    """
    limits = limits or Limits()
    documents: dict[str, Document] = {}
    skipped: list[str] = []
    failures: list[DocumentError] = []
    for source in sources:
        if source == STANDARD_INPUT:
            if STANDARD_INPUT not in documents:
                documents[STANDARD_INPUT] = _read_standard_input(stdin, limits)
            continue
        expansion = expand_source(source, KNOWN_SUFFIXES)
        skipped += expansion.others
        failures += expansion.failures
        for path in expansion.files:
            real_path = os.path.normcase(os.path.realpath(path))
            try:
                documents[real_path] = documents.get(real_path) or _read_file(path, limits, tell, step)
            except DocumentError as error:
                if strict or expansion.named:
                    raise
                failures.append(error)
    if failures and (strict or not documents):
        more = f" (and {len(failures) - 1} more that cannot be read)" if len(failures) > 1 else ""
        raise DocumentError(f"{failures[0]}{more}")
    skipped += (f"skipped {failure}" for failure in failures)
    return Collection(tuple(documents.values()), tuple(dict.fromkeys(skipped)))


def _read_standard_input(stdin: BinaryIO | None, limits: Limits) -> Document:
    return read_document(read_standard_input(stdin or getattr(sys.stdin, "buffer", None), limits), "stdin", limits)


def read_standard_input(stream: BinaryIO | None, limits: Limits | None = None) -> bytes:
    """The document on standard input, a byte more than the limit where it is too large. Raises DocumentError for none."""
    data = _read_at_most(stream, (limits or Limits()).max_bytes + 1) if stream else b""
    if not data:
        raise document_error("stdin", "standard input is empty", "pipe a document into it")
    return data


def _read_file(path: Path, limits: Limits, tell: Callable[[str], None], step: Callable[[str], None]) -> Document:
    name = path.as_posix()
    try:
        with _open(path, f"waiting for a writer to {one_line(name)} ...", tell) as stream:
            data = _read_at_most(stream, limits.max_bytes + 1)
    except FileNotFoundError as error:
        raise document_error(name, "no such file or folder", "check the name") from error
    except PermissionError as error:
        raise document_error(name, "permission denied", "check the file's permissions") from error
    except OSError as error:
        raise document_error(name, f"cannot be read: {error.strerror or error}", "check the file") from error
    return read_document(data, name, limits, step)


def _open(path: Path, waiting: str, tell: Callable[[str], None]) -> BinaryIO:
    """Open a file; tell when a named pipe keeps waiting for its writer."""
    timer = threading.Timer(PATIENCE_SECONDS, tell, (waiting,))
    if path.is_fifo():
        timer.start()
    try:
        return path.open("rb")
    finally:
        timer.cancel()


def _read_at_most(stream: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes; a pipe may return fewer at a time than asked for."""
    chunks: list[bytes] = []
    while size > 0 and (chunk := stream.read(min(size, 2**20))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
