"""Turns the sources that the user names (files, folders, glob patterns, standard input) into documents."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from specprefill_cli.documents.document import Collection, Document
from specprefill_cli.documents.reader import LIMITS
from specprefill_cli.documents.registry import KNOWN_SUFFIXES, read_document
from specprefill_cli.errors import DocumentError, document_error, one_line
from specprefill_cli.files import STANDARD_INPUT

URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)
# Most suffixes of skipped files that a warning lists.
MOST_SUFFIXES = 5
PATTERN_CHARACTERS = frozenset("*?[")
# Office programs put a lock file with this prefix beside an open document.
LOCK_PREFIX = "~$"


@dataclass(frozen=True)
class Expansion:
    """The files of a source, sorted.

    named: whether the source itself is the file
    warnings: a sentence about a folder's files that no reader claims, or nothing; failures: unreadable folders
    """

    files: list[Path]
    named: bool = False
    warnings: list[str] = field(default_factory=list)
    failures: list[DocumentError] = field(default_factory=list)


def expand_source(source: str) -> Expansion:
    """Find the files that a source names: itself, a folder's files, or a pattern's matches.

    Returns a name without a file unchanged: opening it gives the best error.
    Raises DocumentError for a URL, a pattern without matches, a folder without known suffixes, or an unreadable folder.
    """
    if URL.match(source):
        raise document_error(source, "URLs are not read", "download the document and give the file")
    if not source or "\0" in source:
        cause = "not a file name" if source else "an empty file name"
        raise document_error(source or '""', cause, f"give a file, a folder, a pattern or {STANDARD_INPUT}")
    # Shells expand `~`, but no shell sees a name in a file or a session.
    source = source if os.path.lexists(source) else os.path.expanduser(source)
    # For a parent without permission, os.path returns False and pathlib raises; opening the file gives the reason.
    if os.path.isdir(source):
        return expand_folder(source)
    if os.path.lexists(source) or PATTERN_CHARACTERS.isdisjoint(source):
        return Expansion([Path(source)], named=True)
    files = sorted({path for path in match_pattern(Path(source)) if not path.name.startswith(LOCK_PREFIX)})
    if not files:
        raise document_error(
            source, "no file matches this pattern", "check it; quotes keep the shell from expanding it"
        )
    return Expansion(files)


def match_pattern(pattern: Path) -> Iterator[Path]:
    """Yield the files that a pattern matches, except hidden files; `**` follows no links to folders: they may form loops."""
    fixed_parts = len(list(takewhile(PATTERN_CHARACTERS.isdisjoint, pattern.parts)))
    # Inside a name, `**` means the same as `*`.
    parts = [part if part == "**" else part.replace("**", "*") for part in pattern.parts[fixed_parts:]]
    # A pattern that ends with `**` matches the files below; pathlib would yield only the folders.
    file_parts = (*parts, "*") if parts[-1] == "**" else parts
    top = Path(*pattern.parts[:fixed_parts])
    for path in top.glob(str(Path(*file_parts))):
        hidden = any(part.startswith(".") for part in path.relative_to(top).parts)
        if not hidden and not os.path.isdir(path):
            yield path


def expand_folder(folder: str) -> Expansion:
    """Find a folder's files with a known suffix, including broken links, so that reading them reports the error.

    Skips hidden files and folders, and does not follow links to folders (they may form loops).
    """
    files: list[Path] = []
    skipped: list[Path] = []
    failures: list[DocumentError] = []

    def add_failure(error: OSError) -> None:
        cause = f"the folder cannot be read: {error.strerror or error}"
        failures.append(document_error(str(error.filename or folder), cause, "check its permissions"))

    for parent, folders, names in os.walk(folder, onerror=add_failure):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith((".", LOCK_PREFIX))):
            readable = os.path.isfile(path) or not os.path.exists(path)
            (files if readable and path.suffix.lower() in KNOWN_SUFFIXES else skipped).append(path)
    if not files and failures:
        raise failures[0]
    if not files:
        cause = f"no documents in this folder (known suffixes: {', '.join(KNOWN_SUFFIXES)})"
        raise document_error(folder, cause, "name the files")
    if not skipped:
        return Expansion(sorted(files), failures=failures)
    suffixes = sorted({path.suffix.lower() or path.name for path in skipped})
    suffix_list = ", ".join(suffixes[:MOST_SUFFIXES]) + (", ..." if len(suffixes) > MOST_SUFFIXES else "")
    subject = "file of another kind was" if len(skipped) == 1 else "files of other kinds were"
    warning = one_line(f"{len(skipped)} {subject} skipped in the folder {folder} ({suffix_list})")
    return Expansion(sorted(files), warnings=[warning], failures=failures)


def read_documents(sources: Sequence[str], *, strict: bool = False) -> list[Document]:
    """Read the documents that `sources` name, in order; a file that is named several times is read once.

    A source is a file, a folder (recursively, sorted, known suffixes only), a glob pattern (`**` included) or `-` for
    standard input. A document's name is its path as the source spells it; that of standard input is `stdin`. An unreadable
    file of a folder or pattern gives a Python warning, or an error with `strict`.
    Raises DocumentError for the first source that cannot be read.
    """
    collection = read_collection(sources, strict=strict)
    for skipped in collection.skipped:
        warnings.warn(skipped, stacklevel=2)
    return list(collection.documents)


def read_collection(
    sources: Sequence[str], *, strict: bool = False, step: Callable[[str], None] = lambda _text: None
) -> Collection:
    """Read the documents of `read_documents` into a collection, which also lists the skipped files.

    step: called with the progress of a reader, page by page
    """
    documents: dict[str, Document] = {}
    skipped: list[str] = []
    failures: list[DocumentError] = []
    for source in dict.fromkeys(sources):
        if source == STANDARD_INPUT:
            documents[source] = read_document(read_standard_input(), "stdin")
            continue
        expansion = expand_source(source)
        skipped += expansion.warnings
        failures += expansion.failures
        for path in expansion.files:
            real_path = os.path.normcase(os.path.realpath(path))
            try:
                documents[real_path] = documents.get(real_path) or read_file(path, step)
            except DocumentError as error:
                if strict or expansion.named:
                    raise
                failures.append(error)
    if failures and (strict or not documents):
        more = f" (and {len(failures) - 1} more that cannot be read)" if len(failures) > 1 else ""
        raise DocumentError(f"{failures[0]}{more}")
    skipped += (f"skipped {failure}" for failure in failures)
    return Collection(tuple(documents.values()), tuple(dict.fromkeys(skipped)))


def read_standard_input() -> bytes:
    """Read standard input, at most a byte more than the size limit. Raises DocumentError if it is empty."""
    # A program without a console has no standard input.
    data = sys.stdin.buffer.read(LIMITS.max_bytes + 1) if sys.stdin else b""
    if not data:
        raise document_error("stdin", "standard input is empty", "pipe a document into it")
    return data


def read_file(path: Path, step: Callable[[str], None]) -> Document:
    """Read a file. Raises DocumentError if that fails."""
    name = path.as_posix()
    try:
        with path.open("rb") as stream:
            data = stream.read(LIMITS.max_bytes + 1)
    except FileNotFoundError as error:
        raise document_error(name, "no such file or folder", "check the name") from error
    except PermissionError as error:
        raise document_error(name, "permission denied", "check the file's permissions") from error
    except OSError as error:
        raise document_error(name, f"cannot be read: {error.strerror or error}", "check the file") from error
    return read_document(data, name, step=step)
