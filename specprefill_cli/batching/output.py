"""Rows of output: written whole, and found again after the process was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.reporting.jsonl import SCHEMA, line

# The beginning of every row.
BEGINNING = line({"schema": SCHEMA}).removesuffix("}").encode("ascii")


class RowWriter:
    """Writes each row in one piece and flushes it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def __call__(self, record: dict[str, Any]) -> None:
        try:
            rest = memoryview(line(record).encode("ascii") + b"\n")
            while rest:
                rest = rest[self.stream.write(rest) :]
            self.stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SpecprefillError(
                f"rows cannot be written ({error.strerror or error}); make room; with --out, --resume continues after the last"
            ) from error


def open_output(path: Path, resume: bool) -> BinaryIO:
    """The output file, ready for more rows; an unfinished row at its end is cut off.

    Raises UsageError for a file that is not empty and not to be resumed, or that holds something else than rows;
    SpecprefillError when it cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"--out {path}: this is a folder; give a file name")
    if path.is_file() and path.stat().st_size and not resume:
        raise UsageError(f"--out {path}: is not empty; give --resume to continue it, or another name")
    if path.exists() and not path.is_file() and resume:
        raise UsageError(f"--resume: {path} is not a file; a pipe or a device cannot be resumed")
    try:
        if path.is_file():
            with path.open("r+b") as stream:
                cut_half_row(stream, path)
        # Unbuffered: a buffer would retry, and fail again, on close when the disk is full.
        return path.open("ab", buffering=0)
    except OSError as error:
        raise SpecprefillError(f"--out {path}: cannot be written ({error.strerror}); give another place") from error


def cut_half_row(stream: BinaryIO, path: Path) -> None:
    """Cut off what follows the last whole row. Raises UsageError, and changes nothing, for a file that holds no rows."""
    end = 0
    for row in stream:
        whole = row.endswith(b"\n")
        if (end == 0 or not whole) and not BEGINNING.startswith(row[: len(BEGINNING)]):
            raise UsageError(f"--resume: {path} is not an output of batch; give another --out")
        end += len(row) if whole else 0
    stream.truncate(end)


def finished_rows(path: Path) -> Iterator[tuple[str | int, bool]]:
    """Identifier of each row in the output, and whether it failed; reads one line at a time.

    Raises SpecprefillError for a line that is not a row of `batch`.
    """
    with path.open("rb") as stream:
        for number, text in enumerate(stream, 1):
            try:
                record = json.loads(text)
                row = record["id"], "error" in record
            except (ValueError, KeyError, TypeError) as error:
                raise SpecprefillError(
                    f"--resume: line {number} of {path} is not a row of output; remove it"
                ) from error
            yield row
