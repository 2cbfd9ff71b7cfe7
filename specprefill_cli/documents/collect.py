"""Turns the sources that the user names (files, folders, glob patterns, standard input) into documents."""

import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import astuple
from pathlib import Path

from specprefill_cli.caches import DiskCache
from specprefill_cli.documents.document import Collection, Document, Page
from specprefill_cli.documents.extras import installed_packages
from specprefill_cli.documents.reader import LIMITS
from specprefill_cli.documents.registry import KNOWN_SUFFIXES, read_document
from specprefill_cli.errors import DocumentError, document_error, one_line
from specprefill_cli.files import STANDARD_INPUT, is_device

Source = str | os.PathLike[str]
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)
PATTERN_CHARACTERS = frozenset("*?[")
# Office programs put a lock file with this prefix beside an open document.
LOCK_PREFIX = "~$"
# Part of the key of a text on disk: raise it when a reader finds other text in the same file.
VERSION = 9


def expand_source(source: str) -> tuple[list[Path], list[str]]:
    """The files that a source names, sorted: itself, a folder's or a pattern's; and sentences about others.

    A name without a file stays as it is: opening it gives the best error.
    Raises DocumentError for a URL, a pattern without matches, or a folder without known suffixes.
    """
    if URL.match(source):
        raise document_error(source, "URLs are not read", "download the document and give the file")
    if not source or "\0" in source:
        raise document_error(source or '""', "not a file name", f"give a file, a folder, a pattern or {STANDARD_INPUT}")
    # Shells expand `~`, but no shell sees a name in a file or a session.
    source = source if os.path.lexists(source) else os.path.expanduser(source)
    # For a parent without permission, os.path returns False and pathlib raises; opening the file gives the reason.
    if os.path.isdir(source) and os.access(source, os.R_OK):
        return expand_folder(source)
    parts = Path(source).parts
    # What exists is no pattern, whatever characters its name has.
    fixed = max(count for count in range(len(parts) + 1) if os.path.lexists(Path(*parts[:count])))
    if PATTERN_CHARACTERS.isdisjoint("".join(parts[fixed:])):
        return [Path(source)], []
    files = match_pattern(Path(*parts[:fixed]), parts[fixed:])
    if not files:
        remedy = "check it; quotes keep the shell from expanding it"
        raise document_error(source, "no file matches this pattern", remedy)
    return files, []


def match_pattern(top: Path, pattern: Sequence[str]) -> list[Path]:
    """The files below `top` that the parts of a pattern match, sorted, except hidden files and lock files."""
    # Inside a name, `**` means the same as `*`; at the end it means the files below, not only the folders.
    parts = [part if part == "**" else part.replace("**", "*") for part in pattern]
    parts += ["*"] if parts[-1] == "**" else []
    # pathlib follows no links to folders: they may form loops.
    matches = (path for path in set(top.glob(str(Path(*parts)))) if not path.name.startswith(LOCK_PREFIX))
    shown = (path for path in matches if not any(part.startswith(".") for part in path.relative_to(top).parts))
    # Opening a folder without permission gives the reason.
    return sorted(path for path in shown if not (os.path.isdir(path) and os.access(path, os.R_OK)))


def expand_folder(folder: str) -> tuple[list[Path], list[str]]:
    """Find a folder's files with a known suffix, including broken links, so that reading them reports the error."""
    matches = match_pattern(Path(folder), ("**",))
    known = (path for path in matches if path.suffix.lower() in KNOWN_SUFFIXES or os.path.isdir(path))
    files = [path for path in known if not is_device(path)]
    if not files:
        cause = f"no documents in this folder (known suffixes: {', '.join(KNOWN_SUFFIXES)})"
        raise document_error(folder, cause, "name the files")
    unknown = len(matches) - len(files)
    subject, verb = ("file of another kind", "was") if unknown == 1 else ("files of other kinds", "were")
    return files, [one_line(f"{unknown} {subject} in {folder} {verb} not read")] if unknown else []


def read_documents(sources: Source | Sequence[Source], *, strict: bool = False) -> list[Document]:
    """Read the documents that `sources` name, in order; a file that is named several times is read once.

    A source is a file, a folder (recursively, sorted, known suffixes only), a pattern or `-` for stdin.
    An unreadable file of a folder or pattern gives a Python warning, or an error with `strict`.
    Raises DocumentError for the first source that cannot be read.
    """
    named = [sources] if isinstance(sources, str | os.PathLike) else sources
    collection = read_collection([os.fspath(name) for name in named], strict=strict)
    for skipped in collection.skipped:
        warnings.warn(skipped, stacklevel=2)
    return list(collection.documents)


def read_collection(
    sources: Sequence[str],
    *,
    strict: bool = False,
    step: Callable[[str], None] = lambda _text: None,
    keep: bool = False,
) -> Collection:
    """`read_documents` into a collection, with what was skipped. step: gets the progress; keep: texts on disk, too."""
    named = {Path(spelling) for source in sources for spelling in (source, os.path.expanduser(source))}
    # None stands for standard input: a file may have the same name.
    files: list[Path | None] = []
    skipped: list[str] = []
    for source in dict.fromkeys(sources):
        if source == STANDARD_INPUT:
            files.append(None)
            continue
        paths, unread = expand_source(source)
        files += paths
        skipped += unread
    documents: dict[str, Document] = {}
    failures: list[DocumentError] = []
    with DiskCache() if keep else nullcontext() as cache:
        for number, path in enumerate(files, start=1):
            place = STANDARD_INPUT if path is None else os.path.normcase(os.path.realpath(path))
            if len(files) > 1:
                step(f"reading file {number:,} of {len(files):,}: {path or STANDARD_INPUT}")
            try:
                documents[place] = documents.get(place) or read_file(path, step, cache)
            except DocumentError as error:
                if strict or path is None or path in named:
                    raise
                failures.append(error)
    if failures and (strict or not documents):
        more = f" (and {len(failures) - 1} more that cannot be read)" if len(failures) > 1 else ""
        raise DocumentError(f"{failures[0]}{more}")
    skipped += (f"skipped {failure}" for failure in failures)
    return Collection(tuple(documents.values()), tuple(dict.fromkeys(skipped)), kept=keep)


def content_of(path: Path | None) -> bytes:
    """Read a file, or standard input, at most a byte more than the size limit. Raises DocumentError if that fails."""
    if path is None:
        # A program without a console has no standard input.
        if data := sys.stdin.buffer.read(LIMITS.max_bytes + 1) if sys.stdin else b"":
            return data
        raise document_error("stdin", "standard input is empty", "pipe a document into it")
    try:
        with path.open("rb") as stream:
            return stream.read(LIMITS.max_bytes + 1)
    except OSError as error:
        cause = f"cannot be read: {error.strerror or error}"
        raise document_error(path.as_posix(), cause, "check its name and its permissions") from error


def read_file(path: Path | None, step: Callable[[str], None], cache: DiskCache | None) -> Document:
    """Read a file, or standard input, or what the cache keeps of its content. Raises DocumentError if that fails."""
    name, data = "stdin" if path is None else path.as_posix(), content_of(path)
    if path is None or cache is None or is_device(path):
        return read_document(data, name, step=step)
    key = f"text {VERSION} {installed_packages()} {path.suffix.lower()!a} {hashlib.sha256(data).hexdigest()}"
    with suppress(TypeError, ValueError):
        head, _, text = (cache.find(key) or b"").decode().partition("\n")
        pages, warned = json.loads(head)
        return Document(name, text, tuple(Page(*page) for page in pages), tuple(warned))
    document = read_document(data, name, step=step)
    head = json.dumps([[astuple(page) for page in document.pages], document.warnings])
    cache.store(key, f"{head}\n{document.text}".encode(), os.path.realpath(path))
    return document
