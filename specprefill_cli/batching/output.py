"""Rows of output: written whole by one run at a time, and found again after the process was killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from filelock import lock_descriptor

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import is_device, write_whole
from specprefill_cli.reporting.jsonl import SCHEMA, line

# The beginning of every row.
BEGINNING = line({"schema": SCHEMA}).removesuffix("}").encode("ascii")
# Number of rows by their key (`rows.key_of`) and by whether they failed.
Finished = Counter[tuple[str | int, bool]]


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
    finished: Finished = Counter()
    with ExitStack() as stack:
        stream = stack.enter_context(opened(path, "ab+" if resume else "ab"))
        if path.is_file() and path.stat().st_size and not resume:
            raise UsageError(f"--out {path}: is not empty; give --resume to continue it, or another name")
        if resume:
            end = 0
            for text, key, failed in whole_rows(stream, path):
                finished[key, failed] += 1
                end += len(text)
            stream.truncate(end)
        if retry_failed and any(failed for _, failed in finished):
            kept = [text for text, _, failed in whole_rows(stream, path) if not failed]
            finished = Counter({row: number for row, number in finished.items() if not row[1]})
            if os.name == "nt":
                # Windows replaces no open file.
                stream.close()
            write_whole(path, b"".join(kept))
            stream = stack.enter_context(opened(path, "ab"))
        yield stream, finished


def opened(path: Path, mode: str) -> BinaryIO:
    """Open the output, for this run alone.

    Without a buffer, which would retry, and fail again, on close when the disk is full.
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


def whole_rows(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, str | int, bool]]:
    """Text and key of each row of an output, and whether it failed, up to an unfinished one.

    Raises UsageError for a file that holds no rows, SpecprefillError for a line that is not one of `batch`.
    """
    foreign = UsageError(f"--resume: {path} is not an output of batch; give another --out")
    with open(stream.fileno(), "rb", closefd=False) as reader:
        reader.seek(0)
        for number, text in enumerate(reader, 1):
            whole = text.endswith(b"\n")
            if (number == 1 or not whole) and not BEGINNING.startswith(text[: len(BEGINNING)]):
                raise foreign
            if not whole:
                return
            try:
                record = json.loads(text)
                row = text, record.get("row_hash", record["id"]), "error" in record
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                line_error = SpecprefillError(f"--resume: line {number} of {path} is not a row of output; remove it")
                raise (foreign if number == 1 else line_error) from error
            yield row
