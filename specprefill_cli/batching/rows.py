"""Rows of input: JSON objects, or plain questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.settings import SETTINGS

OVERRIDES = tuple(name for name, setting in SETTINGS.items() if setting.per_question)
KEYS = ("id", "question", "document", "documents")


class RowError(SpecprefillError):
    """A row of input that cannot be a question."""


@dataclass(frozen=True)
class Row:
    """One question; `identifier` is the row's own, or the number of its line.

    documents: empty for the batch's own; overrides: settings as the row has them; ignored: unknown keys
    """

    identifier: str | int
    question: str
    documents: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class BadRow:
    """A line that is not a question, and why."""

    identifier: str | int
    error: RowError


def parse_line(line: bytes, number: int, has_documents: bool) -> Row | BadRow | None:
    """Parse a line of input; None for a blank one.

    number: of the line, from 1; has_documents: whether rows without documents, and plain questions, are allowed
    """
    identifier: str | int = number
    try:
        # Files joined by `cat` may have byte order marks in the middle.
        text = line.decode("utf-8").strip().lstrip("\ufeff")
        if not text:
            return None
        if not text.startswith("{"):
            return Row(number, plain_question(text, has_documents))
        values = json.loads(text)
        identifier = own_identifier(values, number)
        return row_of(values, identifier, has_documents)
    except RowError as error:
        return BadRow(identifier, error)
    except (ValueError, RecursionError) as error:
        return BadRow(identifier, RowError(f"not JSON in UTF-8 ({str(error).splitlines()[0]})"))


def plain_question(text: str, has_documents: bool) -> str:
    """The question of a line that is plain text or a JSON string. Raises RowError for other JSON."""
    if not has_documents:
        raise RowError("not a JSON object; a plain question needs --document")
    if "\0" in text:
        raise RowError("not text in UTF-8; save the file as UTF-8")
    try:
        value = json.loads(text) if text[0] in '["' else text
    except ValueError:
        value = text
    if isinstance(value, list) or text in ("[", "]"):
        raise RowError("a JSON array is not a row; give one object per line (jq -c '.[]' writes them)")
    return row_of({"question": value}, text, has_documents).question


def own_identifier(values: Mapping[str, Any], number: int) -> str | int:
    """The row's `id`, or the number of its line. Raises RowError for an `id` of another type."""
    identifier = values.get("id")
    if identifier is None:
        return number
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise RowError("id must be a string or a whole number")
    return identifier


def row_of(values: Mapping[str, Any], identifier: str | int, has_documents: bool) -> Row:
    """The row in a JSON object. Raises RowError, naming the key that is wrong or missing."""
    question = values.get("question")
    if not isinstance(question, str) or not question.strip():
        raise RowError("question must be a string that is not empty")
    given = [values[key] for key in ("documents", "document") if values.get(key) is not None]
    if len(given) > 1:
        raise RowError("give documents or document, not both")
    documents = given[0] if given else []
    names = [documents] if isinstance(documents, str) else documents
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise RowError("documents must be a list of paths")
    if "-" in names:
        raise RowError("documents: standard input cannot be a row's document; use --document -")
    if not names and not has_documents:
        raise RowError("no documents; give the row documents, or the batch --document")
    fixed = next((key for key in values if key in SETTINGS and key not in OVERRIDES), None)
    if fixed:
        raise RowError(f"{fixed} applies to the whole batch; give it on the command line")
    overrides = {key: values[key] for key in OVERRIDES if values.get(key) is not None}
    ignored = tuple(key for key in values if key not in (*KEYS, *OVERRIDES))
    return Row(identifier, question, tuple(names), overrides, ignored)
