"""Write files whole or not at all; the name of standard input."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from specprefill_cli.errors import SpecprefillError, UsageError

# Stands for standard input in a list of documents or files.
STANDARD_INPUT = "-"


def check_can_write(path: Path, option: str) -> None:
    """Raise UsageError for a path that cannot be written; called before any work is done."""
    if path == Path("-"):
        raise UsageError(f"{option} -: this cannot be standard output; give a file name")
    if os.path.isdir(path):
        raise UsageError(f"{option} {path}: this is a folder; give a file name")
    # Unlike pathlib, os.path does not raise for a folder without search permission.
    if not os.path.isdir(path.parent):
        raise UsageError(f"{option} {path}: the folder {path.parent} does not exist; create it first")
    # A new file in the same folder replaces the old file, so the folder must be writable too.
    places_to_write = [path] if os.path.exists(path) else []
    if not is_device(path):
        places_to_write.append(Path(os.path.realpath(path)).parent)
    if not all(os.access(place, os.W_OK) for place in places_to_write):
        raise UsageError(f"{option} {path}: no permission to write there; give another place")


def same_file(path: Path, other: Path) -> bool:
    """Whether two paths lead to the same existing file."""
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)


def is_device(path: Path) -> bool:
    """Whether a path exists and is not a regular file: a device or a pipe, such as /dev/stdout."""
    return os.path.exists(path) and not os.path.isfile(path)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write bytes, or text in UTF-8, with `write_pieces`."""
    write_pieces(path, [content.encode() if isinstance(content, str) else content])


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Write pieces atomically, through links; write to a device or pipe instead of replacing it. Raises SpecprefillError."""
    try:
        # Check this before resolving links: the pipe behind a link has no name.
        if is_device(path):
            path.write_bytes(b"".join(pieces))
            return
        path = Path(os.path.realpath(path))
        scratch = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
        try:
            with scratch.open("xb") as stream:
                if path.exists():
                    shutil.copymode(path, scratch)
                stream.writelines(pieces)
                stream.flush()
                os.fsync(stream.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise SpecprefillError(f"{path}: cannot be written ({reason}); give another place") from error
