"""What `ask`, `plan` and `compare` have in common: a question, documents, and a page to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.cli.console import Notes
from specprefill_cli.errors import UsageError
from specprefill_cli.files import check_can_write, same_file, write_whole
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.reporting.html import PageResult


def check_question(question: str) -> None:
    """Raises UsageError for a question that is empty, or that is the last of several documents."""
    from specprefill_cli.documents.cleaning import clean_question

    clean_question(question)
    if os.path.exists(question):
        raise UsageError(
            f"{question}: this is a file, but it stands where the question belongs; give the question last, in quotes"
        )


def document_reader(settings: Settings, notes: Notes) -> Callable[..., Collection]:
    """What reads documents by name, as the settings want it."""
    from specprefill_cli.documents import read_collection

    return partial(read_collection, strict=settings.strict, tell=notes.tell)


def read_inputs(documents: Sequence[str], html: Path | None, settings: Settings, notes: Notes) -> Collection:
    """Read the documents.

    Raises UsageError, before anything is read or loaded, for a page (`--html`) that could not be written; DocumentError
    for a document that cannot be read.
    """
    if html is not None:
        check_can_write(html, "--html")
    with notes.progress("reading documents") as step:
        collection = document_reader(settings, notes)(documents, step=step)
    if html is not None:
        check_no_document(html, collection, "--html")
    return collection


def check_no_document(path: Path, collection: Collection, option: str) -> None:
    """Raises UsageError for an output file that is one of the documents."""
    if any(same_file(path, Path(document.name)) for document in collection.documents):
        raise UsageError(f"{option} {path}: this is one of the documents; give another name")


def write_page(path: Path, question: str, collection: Collection, results: Sequence[PageResult]) -> None:
    """Write the page of a question. Raises SpecprefillError when it cannot be written."""
    from specprefill_cli.reporting.html import render_page

    write_whole(path, render_page(question, collection, results))
