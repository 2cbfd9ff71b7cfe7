"""Rows of output: a single run at a time writes complete rows; a later run can read them, even after a kill."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from filelock import lock_descriptor

from specprefill_cli.batching.rows import Row
from specprefill_cli.engine.request import Done, Event, Failed
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import is_device, write_whole
from specprefill_cli.record import SCHEMA, json_line

# Every row begins with these bytes.
BEGINNING = json_line({"schema": SCHEMA}).removesuffix("}").encode("ascii")
# Rows older than this are safe from a power cut.
SYNCED_SECONDS = 1.0


@dataclass
class Finished:
    """The rows that an output holds, by `row_hash`: whether each of them failed."""

    rows: dict[str, list[bool]] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Count a record. Raises KeyError if it has no hash."""
        self.rows.setdefault(record["row_hash"], []).append("error" in record)

    def take(self, row_hash: str) -> bool | None:
        """Remove a row and return whether it failed; None if the output does not hold it."""
        failed = self.rows.get(row_hash)
        return failed.pop() if failed else None

    def total(self) -> int:
        """Number of rows that no row of the input matched."""
        return sum(map(len, self.rows.values()))


def output_row(row: Row, event: Event) -> dict[str, Any]:
    """The record of a row's answer, or an error record with the error's type and message."""
    identity = {"id": row.identifier, "row_hash": row.row_hash}
    if isinstance(event, Done):
        record = event.result.to_json()
        ignored = [f"key '{key}' of the row is unknown and was ignored" for key in row.ignored]
        return {**record, "warnings": [*record["warnings"], *ignored], **identity}
    assert isinstance(event, Failed), "the last event of a row"
    error = event.error
    message = " ".join(str(error).split()) or type(error).__name__
    name = (error.name if isinstance(error, SpecprefillError) else "") or type(error).__name__
    return {"schema": SCHEMA, **identity, "error": {"type": name, "message": message}}


class RowWriter:
    """Writes each row whole, and syncs to the disk once a second."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.synced = time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        try:
            unwritten = memoryview(json_line(record).encode("ascii") + b"\n")
            while unwritten:
                unwritten = unwritten[self.stream.write(unwritten) :]
            self.stream.flush()
            if time.monotonic() - self.synced > SYNCED_SECONDS:
                self.sync()
        except BrokenPipeError:
            raise
        except OSError as error:
            remedy = "make room; with --out, --resume continues after the last"
            raise SpecprefillError(f"rows cannot be written ({error.strerror or error}); {remedy}") from error

    def sync(self) -> None:
        """Wait until the disk holds what was written; pipes and some file systems do not support this."""
        with suppress(OSError, ValueError):
            os.fsync(self.stream.fileno())
        self.synced = time.monotonic()


@contextmanager
def open_output(
    path: Path, resume: bool, retry_failed: bool = False, hashes: Sequence[str] | None = None
) -> Iterator[tuple[BinaryIO, Finished]]:
    """Open the output file for more rows, and count its rows; cut off an unfinished row, and failed rows to retry.

    hashes: of the input's rows, if known. Raises UsageError for a non-empty file without `resume`, and for a file that
    does not hold rows or none of these; SpecprefillError if it cannot be written, or another run writes to it.
    """
    if is_device(path) and resume:
        raise UsageError(f"--resume: {path} is not a file; a pipe or a device cannot be resumed")
    finished = Finished()
    with ExitStack() as stack:
        stream = stack.enter_context(open_locked(path, "ab+" if resume else "ab"))
        if path.is_file() and path.stat().st_size and not resume:
            raise UsageError(f"--out {path}: is not empty; give --resume to continue it, or another name")
        if resume:
            end_of_rows = 0
            for row_bytes, record in complete_rows(stream, path):
                end_of_rows += len(row_bytes)
                finished.add(record)
            if hashes is not None and finished.rows and finished.rows.keys().isdisjoint(hashes):
                remedy = "give the same input and --document as before, or another --out"
                raise UsageError(f"--resume: no row of {path} is in the input; {remedy}")
            stream.truncate(end_of_rows)
            if retry_failed:
                finished.rows = {key: [False] * failed.count(False) for key, failed in finished.rows.items()}
                stream = stack.enter_context(remove_failed_rows(stream, path))
        yield stream, finished


def remove_failed_rows(stream: BinaryIO, path: Path) -> BinaryIO:
    """Replace the output by a copy without its failed rows, and open the copy."""
    kept_rows = [text for text, record in complete_rows(stream, path) if "error" not in record]
    if os.name == "nt":
        # Windows does not replace an open file.
        stream.close()
    write_whole(path, b"".join(kept_rows))
    return open_locked(path, "ab")


def open_locked(path: Path, mode: str) -> BinaryIO:
    """Open the output with a lock, for this run alone."""
    try:
        # Unbuffered: on a full disk, a buffer would retry on close and fail again.
        stream = cast(BinaryIO, path.open(mode, buffering=0))
    except OSError as error:
        raise SpecprefillError(f"--out {path}: cannot be written ({error.strerror}); give another place") from error
    # Some network file systems have no locks.
    with suppress(OSError):
        if path.is_file() and not lock_descriptor(stream.fileno(), blocking=False):
            stream.close()
            remedy = "wait for its end, or give another name"
            raise SpecprefillError(f"--out {path}: another run is writing to it; {remedy}")
    return stream


def complete_rows(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield text and record of each whole row, up to the zeros of a power cut. Raises UsageError for another's line."""
    with open(stream.fileno(), "rb", closefd=False) as reader:
        reader.seek(0)
        for number, row_bytes in enumerate(reader, 1):
            is_complete = row_bytes.endswith(b"\n")
            if not is_complete and not row_bytes.strip(b"\0"):
                return
            try:
                if not BEGINNING.startswith(row_bytes[: len(BEGINNING)]):
                    raise ValueError
                if not is_complete:
                    return
                record = json.loads(row_bytes)
                Finished().add(record)
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"line {number} of {path} is not a row of batch; give another --out") from error
            yield row_bytes, record
