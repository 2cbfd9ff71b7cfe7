"""Rows of output: one run at a time writes complete rows; a later run finds them again, also after a kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from filelock import lock_descriptor

from specprefill_cli.batching.rows import Row, key_of
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import is_device, write_pieces
from specprefill_cli.record import SCHEMA, json_line

# The beginning of every row.
BEGINNING = json_line({"schema": SCHEMA}).removesuffix("}").encode("ascii")
# Seconds after which rows are safe from a power cut.
SYNCED_SECONDS = 1.0


@dataclass
class Finished:
    """The rows that an output holds, by their keys (`rows.key_of`): the hash of their content, and whether they failed."""

    rows: dict[str | int, list[tuple[str | None, bool]]] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Count a record. Raises KeyError for one without an id."""
        key = record.get("row_hash", record["id"])
        self.rows.setdefault(key, []).append((record.get("content_hash"), "error" in record))

    def take(self, row: Row) -> bool | None:
        """Whether a row failed, and forget it; None where the output does not have it."""
        entries = self.rows.get(key_of(row), [])
        candidates = [entry for entry in entries if entry[0] in (row.content_hash, None)]
        if not candidates:
            return None
        # One that names this content, and did not fail, first.
        entry = min(candidates, key=lambda entry: (entry[0] is None, entry[1]))
        entries.remove(entry)
        return entry[1]

    def total(self) -> int:
        """Rows that no row of the input has taken."""
        return sum(map(len, self.rows.values()))


class RowWriter:
    """Writes each row in one piece, and to the disk once a second."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.synced = time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        try:
            rest = memoryview(json_line(record).encode("ascii") + b"\n")
            while rest:
                rest = rest[self.stream.write(rest) :]
            self.stream.flush()
            if time.monotonic() - self.synced > SYNCED_SECONDS:
                self.sync()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SpecprefillError(
                f"rows cannot be written ({error.strerror or error}); make room; with --out, --resume continues after the last"
            ) from error

    def sync(self) -> None:
        """Wait until the disk has what was written; pipes, and some file systems, cannot."""
        with suppress(OSError, ValueError):
            os.fsync(self.stream.fileno())
        self.synced = time.monotonic()


@contextmanager
def open_output(path: Path, resume: bool, retry_failed: bool = False) -> Iterator[tuple[BinaryIO, Finished]]:
    """Open the output file for more rows, and count those that it holds; an unfinished row at its end is cut off.

    retry_failed: first remove the failed rows from a file that is resumed

    Raises UsageError for a file that is not empty and not to be resumed, or that holds something else than rows;
    SpecprefillError when it cannot be written, or while another run writes to it.
    """
    if path.is_dir():
        raise UsageError(f"--out {path}: this is a folder; give a file name")
    if is_device(path) and resume:
        raise UsageError(f"--resume: {path} is not a file; a pipe or a device cannot be resumed")
    finished = Finished()
    with ExitStack() as stack:
        stream = stack.enter_context(open_locked(path, "ab+" if resume else "ab"))
        if path.is_file() and path.stat().st_size and not resume:
            raise UsageError(f"--out {path}: is not empty; give --resume to continue it, or another name")
        if resume:
            end = failed = 0
            for text, record in complete_rows(stream, path):
                end += len(text)
                failed += "error" in record
                if not (retry_failed and "error" in record):
                    finished.add(record)
            stream.truncate(end)
            if retry_failed and failed:
                stream = stack.enter_context(remove_failed_rows(stream, path))
        yield stream, finished


def remove_failed_rows(stream: BinaryIO, path: Path) -> BinaryIO:
    """Replace the output by one without its failed rows, and open that."""
    kept = [text for text, record in complete_rows(stream, path) if "error" not in record]
    if os.name == "nt":
        # Windows replaces no open file.
        stream.close()
    write_pieces(path, kept)
    return open_locked(path, "ab")


def open_locked(path: Path, mode: str) -> BinaryIO:
    """Open the output, for this run alone.

    Without a buffer: that would retry, and fail again, on close when the disk is full.
    """
    try:
        stream = cast(BinaryIO, path.open(mode, buffering=0))
    except OSError as error:
        raise SpecprefillError(f"--out {path}: cannot be written ({error.strerror}); give another place") from error
    # Some network file systems have no locks.
    with suppress(OSError):
        if path.is_file() and not lock_descriptor(stream.fileno(), blocking=False):
            stream.close()
            raise SpecprefillError(
                f"--out {path}: another run is writing to it; wait for its end, or give another name"
            )
    return stream


def complete_rows(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Text and record of each row of an output, up to an unfinished one; a power cut may leave zeros in its place.

    Raises UsageError for a file that holds no rows, SpecprefillError for a line that is not one of `batch`.
    """
    foreign = UsageError(f"--resume: {path} is not an output of batch; give another --out")
    with open(stream.fileno(), "rb", closefd=False) as reader:
        reader.seek(0)
        for number, text in enumerate(reader, 1):
            is_complete = text.endswith(b"\n")
            if not is_complete and not text.strip(b"\0"):
                return
            if (number == 1 or not is_complete) and not BEGINNING.startswith(text[: len(BEGINNING)]):
                raise foreign
            if not is_complete:
                return
            try:
                record = json.loads(text)
                Finished().add(record)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                line_error = SpecprefillError(f"--resume: line {number} of {path} is not a row of output; remove it")
                raise (foreign if number == 1 else line_error) from error
            yield text, record
