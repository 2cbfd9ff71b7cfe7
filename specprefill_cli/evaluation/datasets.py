"""Question sets for `evaluate`: JSONL, plain or compressed with xz."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specprefill_cli.documents import read_documents
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.library import Library
from specprefill_cli.errors import SpecprefillError


@dataclass(frozen=True)
class Item:
    """One question with its acceptable answers (none: not answerable) and the documents it is asked about."""

    identifier: str
    question: str
    answers: tuple[str, ...]
    library: Library


def read_items(path: Path, limit: int | None, distractors: int, seed: int) -> list[Item]:
    """Rows `{id, context | document | documents, question, answers}` of a file; paths are relative to the file.

    limit: how many rows, drawn at random with `seed`; distractors: how many other contexts of the file to bury each
    row's context among, at a random place

    Raises SpecprefillError for a row that is not such an object, naming its line.
    """
    rows = read_rows(path)
    generator = random.Random(seed)
    if limit is not None and limit < len(rows):
        rows_used = generator.sample(rows, limit)
    else:
        rows_used = rows
    contexts = sorted({row["context"] for row in rows if "context" in row})
    cache: dict[tuple[str, ...], Library] = {}
    items = []
    for number, row in enumerate(rows_used):
        answers = tuple(str(answer) for answer in row["answers"])
        if "context" in row:
            source = bury(row["context"], contexts, distractors, generator)
        else:
            source = named_documents(row, path, cache)
        items.append(Item(str(row.get("id", number)), row["question"], answers, source))
    return items


def read_rows(path: Path) -> list[dict]:
    if not path.is_file():
        raise SpecprefillError(f"{path}: no such file; give a JSONL file of questions")
    opener = lzma.open if path.suffix == ".xz" else open
    rows = []
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise SpecprefillError(f"{path}, line {number}: not JSON ({error})") from error
            if not isinstance(row, dict) or not {"question", "answers"} <= set(row):
                raise SpecprefillError(f"{path}, line {number}: needs the keys question and answers")
            if not {"context", "document", "documents"} & set(row):
                raise SpecprefillError(f"{path}, line {number}: needs one of context, document, documents")
            rows.append(row)
    return rows


def bury(context: str, contexts: Sequence[str], distractors: int, generator: random.Random) -> Library:
    """The context at a random place among `distractors` others, each a paragraph of one document."""
    others = generator.sample(contexts, min(len(contexts), distractors + 1))
    chosen = [other for other in others if other != context][:distractors]
    chosen.insert(generator.randint(0, len(chosen)), context)
    return Library((one_page_document("context", "\n\n".join(chosen), "text/plain"),))


def named_documents(row: dict, path: Path, cache: dict[tuple[str, ...], Library]) -> Library:
    names = tuple(row.get("documents") or [row["document"]])
    if names not in cache:
        documents: list[Document] = read_documents([str(path.parent / name) for name in names])
        cache[names] = Library(tuple(documents))
    return cache[names]
