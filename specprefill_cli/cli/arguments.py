"""What stands on the command line besides options: documents, and the question after them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from specprefill_cli.cli.inputs import check_question
from specprefill_cli.errors import UsageError

EXAMPLE_DOCUMENT, EXAMPLE_QUESTION = "report.pdf", '"What is the notice period?"'


def checked_arguments(command: str, documents: Sequence[str] | None, question: str | None) -> tuple[list[str], str]:
    """The documents and the question of a command; the question `-` is read from standard input.

    Raises UsageError where either is missing, and for a question that is empty or one of the documents.
    """
    if question is None:
        raise missing("the documents and the question are", command, EXAMPLE_DOCUMENT, EXAMPLE_QUESTION)
    # A single argument stands in the question's place, whatever it is.
    if not documents and names_document(question):
        raise missing("the question is", command, shlex.quote(question), EXAMPLE_QUESTION)
    if not documents:
        raise missing("the documents are", command, EXAMPLE_DOCUMENT, shlex.quote(question))
    if question == "-":
        question = read_question(documents)
    check_question(question)
    return list(documents), question


def missing(subject: str, command: str, document: str, question: str) -> UsageError:
    """What to raise where an argument is missing, with an example of both."""
    return UsageError(f"{command}: {subject} missing; for example: specprefill {command} {document} {question}")


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


def check_dashes(arguments: Sequence[str]) -> None:
    """Raises UsageError for the first argument that was read as options and is a file whose name begins with a dash."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for name in before:
        if name.startswith("-") and name != "-" and os.path.exists(name):
            raise UsageError(
                f"{name}: a file whose name begins with a dash looks like an option; write -- before it, after all "
                f"options: -- {shlex.quote(name)}"
            )
