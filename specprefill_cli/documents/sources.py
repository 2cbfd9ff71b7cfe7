"""What the user named -> the files to read: files, folders and glob patterns."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from specprefill_cli.documents.errors import document_error, one_line

STANDARD_INPUT = "-"

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)
# Suffixes that a warning names.
_MOST_KINDS = 5
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
    source = _at_home(source)
    path = Path(source)
    # os.path answers False where pathlib raises (a parent without permission); opening the file then says why.
    if os.path.isdir(path):
        return _files_of_folder(path, suffixes)
    if os.path.lexists(path) or _PATTERN_CHARACTERS.isdisjoint(source):
        return [path]
    found = map(Path, glob.glob(source, recursive=True))
    matches = sorted(path for path in found if not os.path.isdir(path) and not _is_lock(path.name))
    if not matches:
        raise document_error(
            source, "no file matches this pattern", "check it; quotes keep the shell from expanding it"
        )
    return matches


def _at_home(source: str) -> str:
    """A name with `~` as its path. Most shells have done that already; what stands in a file goes through none."""
    return source if os.path.lexists(source) else os.path.expanduser(source)


def left_out(source: str, suffixes: Sequence[str]) -> str | None:
    """What a folder holds besides the files that are read, as a warning; None for other sources, and where it is nothing."""
    source = _at_home(source)
    if not os.path.isdir(source):
        return None
    others = [path.suffix.lower() or path.name for path in _walk(Path(source)) if path.suffix.lower() not in suffixes]
    if not others:
        return None
    kinds = sorted(set(others))
    named = ", ".join(kinds[:_MOST_KINDS]) + (", ..." if len(kinds) > _MOST_KINDS else "")
    files = "file of another kind was" if len(others) == 1 else "files of other kinds were"
    return one_line(f"{len(others)} {files} left out of the folder {source} ({named})")


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
        yield from (Path(parent, name) for name in names if not name.startswith(".") and not _is_lock(name))


def _is_lock(name: str) -> bool:
    """Whether a file is what office programs put beside a document that is open."""
    return name.startswith("~$")
