"""What the user named -> the files to read: files, folders and glob patterns."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from specprefill_cli.documents.errors import document_error

STANDARD_INPUT = "-"

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)
_PATTERN_CHARACTERS = frozenset("*?[")


def expand_source(source: str, suffixes: Sequence[str]) -> list[Path]:
    """The files that one source names, sorted: itself, a folder's files with a known suffix, a pattern's matches.

    Hidden files and folders inside a folder are skipped, links to folders are not followed (they may form loops).
    A name without a file behind it is returned as it is: opening it tells the reason best.
    Raises DocumentError: a URL, a pattern that matches nothing, a folder that holds no known suffix.
    """
    if _URL.match(source):
        raise document_error(source, "URLs are not read", "download the document and give the file")
    if not source or "\0" in source:
        what = "not a file name" if source else "an empty file name"
        raise document_error(source or '""', what, f"give a file, a folder, a pattern or {STANDARD_INPUT}")
    path = Path(source)
    # os.path answers False where pathlib raises (a parent without permission); opening the file then says why.
    if os.path.isdir(path):
        return _files_of_folder(path, suffixes)
    if os.path.lexists(path) or _PATTERN_CHARACTERS.isdisjoint(source):
        return [path]
    matches = sorted(match for match in map(Path, glob.glob(source, recursive=True)) if not os.path.isdir(match))
    if not matches:
        raise document_error(
            source, "no file matches this pattern", "check it; quotes keep the shell from expanding it"
        )
    return matches


def _files_of_folder(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    files = sorted(path for path in _walk(folder) if path.suffix.lower() in suffixes and os.path.isfile(path))
    if not files:
        known = ", ".join(suffixes)
        raise document_error(str(folder), f"no documents in this folder (known suffixes: {known})", "name the files")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        where, reason = error.filename or folder, error.strerror or error
        raise document_error(str(where), f"the folder cannot be read: {reason}", "check its permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith("."))
