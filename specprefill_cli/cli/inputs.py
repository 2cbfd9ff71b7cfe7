"""Inputs of `ask`, `plan`, `passages` and `compare`: documents, a question, and the page to write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.cli.console import Notes
from specprefill_cli.errors import UsageError
from specprefill_cli.files import check_can_write, same_file, write_whole
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.record import Comparison

EXAMPLE = 'report.pdf "What is the notice period?"'


def document_reader(settings: Settings) -> Callable[..., Collection]:
    """A function that reads documents by name, under these settings."""
    from specprefill_cli.documents import read_collection

    return partial(read_collection, strict=settings.strict)


def read_inputs(documents: Sequence[str], html: Path | None, settings: Settings, notes: Notes) -> Collection:
    """Read the documents.

    Raises UsageError, before anything is read or loaded, for a page (`--html`) that could not be written; DocumentError
    for a document that cannot be read.
    """
    if html is not None:
        check_can_write(html, "--html")
    with notes.progress("reading documents") as step:
        collection = document_reader(settings)(documents, step=step)
    if html is not None and any(same_file(html, Path(document.name)) for document in collection.documents):
        raise UsageError(f"--html {html}: this is one of the documents; give another name")
    return collection


def write_page(path: Path, collection: Collection, comparison: Comparison) -> None:
    """Write the page of a question. Raises SpecprefillError when it cannot be written."""
    from specprefill_cli.reporting.html import render_page

    write_whole(path, render_page(collection, comparison))


def check_arguments(command: str, documents: Sequence[str] | None, question: str | None) -> tuple[list[str], str]:
    """Return the documents and the question of a command; the question `-` is read from standard input.

    Raises UsageError where either is missing, and for a question that is empty or one of the documents.
    """
    from specprefill_cli.documents.cleaning import clean_question

    # A single argument stands in the question's place, whatever it is.
    if question is None or not documents:
        missing = "documents are" if question and not names_document(question) else "question is"
        raise UsageError(f"{command}: the {missing} missing; for example: specprefill {command} {EXAMPLE}")
    if question == "-":
        question = read_question(documents)
    clean_question(question)
    if os.path.exists(question):
        raise UsageError(
            f"{question}: this is a file, but it stands where the question belongs; give the question last, in quotes"
        )
    return list(documents), question


def names_document(argument: str) -> bool:
    """Whether an argument is standard input, an existing file or folder, or ends as the files that can be read do."""
    from specprefill_cli.documents import KNOWN_SUFFIXES

    return argument == "-" or os.path.exists(argument) or argument.lower().endswith(tuple(KNOWN_SUFFIXES))


def read_question(documents: Sequence[str]) -> str:
    """The question on standard input. Raises UsageError where that is a document too, or closed."""
    if "-" in documents:
        raise UsageError("standard input cannot be both a document and the question; give one of them by name")
    if sys.stdin is None:
        raise UsageError("-: standard input is closed; pipe the question into it, or give it in quotes")
    # A question in another encoding is asked with replacement characters.
    return sys.stdin.buffer.read().decode(errors="replace")
