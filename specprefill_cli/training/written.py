"""Everyday documents with paraphrased questions, written for training by a large language model.

`everyday.jsonl.xz` has a row for each document: title, text, and questions with answer and start (its first character
in the text). Unanswerable questions have the answer null and the start -1.
"""

from __future__ import annotations

from pathlib import Path

from specprefill_cli.training.corpus import read_rows
from specprefill_cli.training.synthesis import NOT_FOUND, Block, Question

EVERYDAY = Path(__file__).with_name("everyday.jsonl.xz")


def written_documents(path: Path = EVERYDAY) -> list[Block]:
    """The documents with their questions, in the file's order."""
    return [Block(row["text"], tuple(map(question_of, row["questions"]))) for row in read_rows(path)]


def question_of(row: dict) -> Question:
    """The question of a row."""
    return Question(row["question"], row["answer"] or NOT_FOUND, row["start"])
