"""Rows of input: JSON objects or plain questions, the lines that they arrive in, and the documents that they name."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from specprefill_cli.caches import ByteCache
from specprefill_cli.documents.collect import expand_source, read_collection
from specprefill_cli.documents.document import KEPT_BYTES, Collection
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.prefill.registry import check_names
from specprefill_cli.settings import SETTINGS, Settings, parse_setting

# Bytes read from a pipe at a time, at most.
PIECE = 2**16
# Documents of the most recently read lists of names.
READ: ByteCache[Collection] = ByteCache(KEPT_BYTES, lambda collection: collection.bytes)
# Locks of what is being read, so that questions about other documents do not wait.
READING: WeakValueDictionary[Any, Lock] = WeakValueDictionary()
OVERRIDES = tuple(name for name, setting in SETTINGS.items() if setting.per_question)
KEYS = ("id", "question", "document", "documents")


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file or a pipe. Bypass a pipe's buffer: no program can exit while a thread waits inside it."""
    if stream.seekable():
        yield from iter(stream.readline, b"")
        return
    raw, incomplete = getattr(stream, "raw", stream), b""
    while piece := raw.read(PIECE):
        *complete, incomplete = (incomplete + piece).split(b"\n")
        yield from (line + b"\n" for line in complete)
    if incomplete:
        yield incomplete


class RowError(SpecprefillError):
    """A row of input that is not a valid question."""


@dataclass(frozen=True)
class Row:
    """A question, or the error of its line. identifier: the row's id, or the number of its line.

    documents: empty: those of the batch; overrides: the row's own settings, unparsed; ignored: unknown keys
    row_hash: of the question with its id, its or the batch's documents, and settings; of the line where it is no question
    """

    identifier: str | int
    question: str = ""
    documents: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    error: RowError | None = None
    row_hash: str = field(default="", compare=False)


def parse_line(line: bytes, number: int, documents: Sequence[str]) -> Row | None:
    """Parse a line, by its number from 1; None for a blank one. documents: the batch's, for rows without their own."""
    row = Row(number, row_hash=hash_of(line.strip().decode("latin-1")))
    try:
        # Files joined by `cat` may have a byte order mark on any line.
        text = line.decode("utf-8").strip().lstrip("\ufeff")
        if not text:
            return None
        json_object = json.loads(text) if text.startswith("{") else {"question": plain_question(text, bool(documents))}
        row_id = identifier_in(json_object)
        if row_id is not None:
            row = replace(row, identifier=row_id)
        row = replace(row, **fields_of(json_object, bool(documents)))
        return replace(row, row_hash=hash_of([row_id, row.question, row.documents or documents, row.overrides]))
    except RowError as error:
        return replace(row, error=error)
    except (ValueError, RecursionError) as error:
        return replace(row, error=RowError(f"not JSON in UTF-8 ({first_line(error)}); correct it, or save it as UTF-8"))


def hash_of(values: Any) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def hashes_in(stream: BinaryIO, documents: Sequence[str]) -> list[str] | None:
    """The hashes of all rows of a file; restores its position. None for a pipe: its rows are yet to come."""
    if not stream.seekable():
        return None
    start = stream.tell()
    rows = (parse_line(line, number, documents) for number, line in enumerate(stream, 1))
    hashes = [row.row_hash for row in rows if row is not None]
    stream.seek(start)
    return hashes


def settings_with(settings: Settings, overrides: Mapping[str, Any], place: str) -> Settings:
    """Apply overrides to settings. Raises UsageError, beginning with `place`, for a wrong value."""
    settings = settings.varied(**{name: parse_setting(name, value, place) for name, value in overrides.items()})
    check_names(settings, place)
    return settings


def plain_question(text: str, has_documents: bool) -> str:
    """The question in a line of plain text. Raises RowError for an array."""
    if not has_documents:
        raise RowError("not a JSON object; a plain question needs --document")
    if "\0" in text:
        raise RowError("not text in UTF-8; save the file as UTF-8")
    if text in ("[", "]") or (text.startswith("[") and text.endswith("]")):
        raise RowError("a JSON array is not a row; give one object per line (jq -c '.[]' writes them)")
    return text


def fields_of(json_object: Mapping[str, Any], has_documents: bool) -> dict[str, Any]:
    """The fields of a row in a JSON object. Raises RowError, naming the wrong or missing key."""
    question = question_in(json_object)
    given_documents = [json_object[key] for key in ("documents", "document") if json_object.get(key) is not None]
    if len(given_documents) > 1:
        raise RowError("give documents or document, not both")
    documents = given_documents[0] if given_documents else []
    names = [documents] if isinstance(documents, str) else documents
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise RowError("documents must be a list of paths")
    if "-" in names:
        raise RowError("documents: standard input cannot be a row's document; use --document -")
    if not names and not has_documents:
        raise RowError("no documents; give the row documents, or the batch --document")
    overrides = overrides_in(json_object, "applies to the whole batch; give it on the command line")
    ignored = unknown_keys(json_object, KEYS)
    return {"question": question, "documents": tuple(names), "overrides": overrides, "ignored": ignored}


def question_in(json_object: Mapping[str, Any]) -> str:
    """The question in a JSON object. Raises RowError if it is missing or empty."""
    question = json_object.get("question")
    if not isinstance(question, str) or not question.strip():
        raise RowError("question must be a string that is not empty")
    return question


def identifier_in(json_object: Mapping[str, Any]) -> str | int | None:
    """The identifier in a JSON object, None if it has none. Raises RowError for a wrong type."""
    identifier = json_object.get("id")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int | None):
        raise RowError("id must be a string or a whole number")
    return identifier


def overrides_in(json_object: Mapping[str, Any], refusal: str) -> dict[str, Any]:
    """The per-question settings in a JSON object. Raises RowError for another setting: its name, then `refusal`."""
    if "confirm" in json_object:
        raise RowError("confirm: only `specprefill ask` and `compare` confirm an answer; leave it out")
    fixed_key = next((key for key in json_object if key in SETTINGS and key not in OVERRIDES), None)
    if fixed_key:
        raise RowError(f"{fixed_key} {refusal}")
    return {key: json_object[key] for key in OVERRIDES if json_object.get(key) is not None}


def unknown_keys(json_object: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Keys of a JSON object that are neither in `keys` nor per-question settings."""
    return tuple(key for key in json_object if key not in (*keys, *OVERRIDES))


def read_once(names: Sequence[str], strict: bool, keep: bool) -> Collection:
    """Read documents as `read_collection` does, or return those read before if no file has changed since."""
    key = (tuple(names), strict, stamps_of(names))
    with READING.setdefault(key, Lock()):
        return READ.find_or(key, lambda: read_collection(names, strict=strict, keep=keep))


def stamps_of(names: Sequence[str]) -> tuple[tuple[Path, int, int, int], ...]:
    """The files that names stand for, each with its size and times. Raises DocumentError if there are none."""
    stamps = []
    for path in chain.from_iterable(expand_source(name)[0] for name in names):
        # A missing file has no stamp. Reading it raises the error.
        with suppress(OSError):
            status = path.stat()
            stamps.append((path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(stamps)
