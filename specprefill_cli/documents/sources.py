"""Sources named by the user -> the files to read: files, folders and glob patterns."""

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
    """Return the files that one source names, sorted: itself, a folder's files with a known suffix, a pattern's matches.

    Hidden files and folders inside a folder are skipped, links to folders are not followed (they may form loops).
    A name without a file behind it is returned as it is: opening it gives the best error.
    Raises DocumentError: a URL, a pattern that matches nothing, a folder that holds no known suffix.
    """
    if _URL.match(source):
        raise document_error(source, "URLs are not read", "download the document and give the file")
    if not source or "\0" in source:
        cause = "not a file name" if source else "an empty file name"
        raise document_error(source or '""', cause, f"give a file, a folder, a pattern or {STANDARD_INPUT}")
    source = _expand_home(source)
    path = Path(source)
    # os.path returns False where pathlib raises (a parent without permission); opening the file then says why.
    if os.path.isdir(path):
        files = sorted(file for file in _walk(path) if file.suffix.lower() in suffixes and os.path.isfile(file))
        if not files:
            cause = f"no documents in this folder (known suffixes: {', '.join(suffixes)})"
            raise document_error(source, cause, "name the files")
        return files
    if os.path.lexists(path) or _PATTERN_CHARACTERS.isdisjoint(source):
        return [path]
    candidates = map(Path, glob.glob(source, recursive=True))
    matches = sorted(file for file in candidates if not os.path.isdir(file) and not _is_lock(file.name))
    if not matches:
        raise document_error(
            source, "no file matches this pattern", "check it; quotes keep the shell from expanding it"
        )
    return matches


def skipped_files(source: str, suffixes: Sequence[str]) -> tuple[str, ...]:
    """Warn about a folder's files that no reader claims: one warning, or none."""
    source = _expand_home(source)
    if not os.path.isdir(source):
        return ()
    skipped = [path for path in _walk(Path(source)) if path.suffix.lower() not in suffixes]
    if not skipped:
        return ()
    kinds = sorted({path.suffix.lower() or path.name for path in skipped})
    named = ", ".join(kinds[:_MOST_KINDS]) + (", ..." if len(kinds) > _MOST_KINDS else "")
    files = "file of another kind was" if len(skipped) == 1 else "files of other kinds were"
    return (one_line(f"{len(skipped)} {files} skipped in the folder {source} ({named})"),)


def _expand_home(source: str) -> str:
    """Expand `~`. Most shells do so, but a name in a file or a session goes through none."""
    return source if os.path.lexists(source) else os.path.expanduser(source)


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        cause = f"the folder cannot be read: {error.strerror or error}"
        raise document_error(str(error.filename or folder), cause, "check its permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith(".") and not _is_lock(name))


def _is_lock(name: str) -> bool:
    """Whether office programs put a file of this name beside an open document."""
    return name.startswith("~$")
