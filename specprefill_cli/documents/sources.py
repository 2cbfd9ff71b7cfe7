"""Sources named by the user -> the files to read: files, folders and glob patterns."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specprefill_cli.documents.errors import DocumentError, document_error, one_line

STANDARD_INPUT = "-"

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)
# Suffixes that a warning names.
_MOST_KINDS = 5
_PATTERN_CHARACTERS = frozenset("*?[")
# Office programs put a file of such a name beside an open document.
_LOCK_PREFIX = "~$"


@dataclass(frozen=True)
class Expansion:
    """What one source stands for.

    files: sorted; named: whether the source itself is the one file
    others: a sentence about a folder's files that no reader claims, or nothing; failures: its folders without access
    """

    files: list[Path]
    named: bool = False
    others: list[str] = field(default_factory=list)
    failures: list[DocumentError] = field(default_factory=list)


def expand_source(source: str, suffixes: Sequence[str]) -> Expansion:
    """Find the files that one source names: itself, a folder's files, or a pattern's matches.

    A name without a file behind it is returned as it is: opening it gives the best error.
    Raises DocumentError: a URL, a pattern that matches nothing, a folder without a known suffix or that cannot be read.
    """
    if _URL.match(source):
        raise document_error(source, "URLs are not read", "download the document and give the file")
    if not source or "\0" in source:
        cause = "not a file name" if source else "an empty file name"
        raise document_error(source or '""', cause, f"give a file, a folder, a pattern or {STANDARD_INPUT}")
    # Most shells expand `~`, but a name in a file or a session goes through none.
    source = source if os.path.lexists(source) else os.path.expanduser(source)
    # os.path returns False where pathlib raises (a parent without permission); opening the file then says why.
    if os.path.isdir(source):
        return _expand_folder(source, suffixes)
    if os.path.lexists(source) or _PATTERN_CHARACTERS.isdisjoint(source):
        return Expansion([Path(source)], named=True)
    matches = sorted({path for path in _matches(Path(source)) if not path.name.startswith(_LOCK_PREFIX)})
    if not matches:
        raise document_error(
            source, "no file matches this pattern", "check it; quotes keep the shell from expanding it"
        )
    return Expansion(matches)


def _matches(pattern: Path) -> Iterator[Path]:
    """Yield the files that match a pattern; for `**`, unlike glob, each real folder is visited once, however links loop."""
    if "**" not in pattern.parts:
        yield from (Path(name) for name in glob.glob(str(pattern)) if not os.path.isdir(name))
        return
    place = pattern.parts.index("**")
    rest = pattern.parts[place + 1 :] or ("*",)
    for top in glob.glob(str(Path(*pattern.parts[:place]))):
        visited = set()
        for folder, inner, _ in os.walk(top, followlinks=True):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            real = os.path.realpath(folder)
            if real in visited:
                inner.clear()
            else:
                visited.add(real)
                yield from _matches(Path(glob.escape(folder), *rest))


def _expand_folder(folder: str, suffixes: Sequence[str]) -> Expansion:
    """Find a folder's files with a known suffix; a link that leads nowhere counts, as a file that cannot be read.

    Hidden files and folders are skipped, links to folders are not followed (they may form loops).
    """
    files: list[Path] = []
    others: list[Path] = []
    failures: list[DocumentError] = []
    for path in _walk(folder, failures):
        readable = os.path.isfile(path) or not os.path.exists(path)
        (files if readable and path.suffix.lower() in suffixes else others).append(path)
    if not files and failures:
        raise failures[0]
    if not files:
        cause = f"no documents in this folder (known suffixes: {', '.join(suffixes)})"
        raise document_error(folder, cause, "name the files")
    kinds = sorted({path.suffix.lower() or path.name for path in others})
    named = ", ".join(kinds[:_MOST_KINDS]) + (", ..." if len(kinds) > _MOST_KINDS else "")
    skipped = "file of another kind was" if len(others) == 1 else "files of other kinds were"
    sentence = one_line(f"{len(others)} {skipped} skipped in the folder {folder} ({named})")
    return Expansion(sorted(files), others=[sentence] if others else [], failures=failures)


def _walk(folder: str, failures: list[DocumentError]) -> Iterator[Path]:
    """Yield the files below a folder, and collect errors of folders that cannot be read."""

    def note(error: OSError) -> None:
        cause = f"the folder cannot be read: {error.strerror or error}"
        failures.append(document_error(str(error.filename or folder), cause, "check its permissions"))

    for parent, folders, names in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith((".", _LOCK_PREFIX)))
