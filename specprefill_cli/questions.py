"""What can be asked."""

from __future__ import annotations

from specprefill_cli.documents.cleaning import replace_surrogates
from specprefill_cli.errors import UsageError


def clean_question(question: str) -> str:
    """The question with half characters replaced, which no tokenizer takes. Raises UsageError for an empty one."""
    if not question.strip():
        raise UsageError("the question is empty; give it after the documents, in quotes")
    return replace_surrogates(question)
