"""Question sets for `evaluate`: JSONL, plain or compressed with xz."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specprefill_cli.documents import read_documents
from specprefill_cli.documents.cleaning import replace_surrogates
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.errors import SpecprefillError


@dataclass(frozen=True)
class Item:
    """One question with its acceptable answers (none: not answerable) and the documents it is asked about.

    evidence: character range of the row's own context in the collection's text, which may hold others too
    buried: whether it was put among others; rows that name documents are asked about these alone
    """

    identifier: str
    question: str
    answers: tuple[str, ...]
    collection: Collection
    evidence: tuple[int, int]
    buried: bool = False


def read_items(path: Path, limit: int | None, distractors: int, seed: int) -> list[Item]:
    """Rows `{id, context | document | documents, question, answers}` of a file; paths are relative to the file.

    limit: how many rows, drawn at random with `seed`; distractors: how many other contexts of the file to bury each
    row's context among, at a random place

    Raises SpecprefillError for a row that is not such an object, naming its line.
    """
    rows = read_rows(path)
    if not rows:
        raise SpecprefillError(f"{path}: holds no questions; give a JSONL file with a row for each")
    generator = random.Random(seed)
    if limit is not None and limit < len(rows):
        rows_used = generator.sample(rows, limit)
    else:
        rows_used = rows
    contexts = sorted({row["context"] for row in rows if "context" in row})
    if contexts and len(contexts) <= distractors:
        raise SpecprefillError(f"{path}: has {len(contexts)} contexts, too few for --distractors {distractors}")
    cache: dict[tuple[str, ...], Collection] = {}
    items = []
    for row in rows_used:
        answers = tuple(str(answer) for answer in row["answers"])
        if "context" in row:
            source, evidence = bury(row["context"], contexts, distractors, generator)
        else:
            source = named_documents(row, path, cache)
            evidence = (0, len(source.text))
        items.append(
            Item(str(row["id"]), row["question"], answers, source, evidence, "context" in row and distractors > 0)
        )
    return items


def read_rows(path: Path) -> list[dict]:
    """The rows of a file; one without an id gets its line's number, from 1."""
    if not path.is_file():
        raise SpecprefillError(f"{path}: no such file; give a JSONL file of questions")
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        # Windows programs begin UTF-8 with a mark.
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            return [
                named_row(parse_row(line, f"{path}, line {number}"), number)
                for number, line in enumerate(lines, 1)
                if line.strip()
            ]
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise SpecprefillError(
            f"{path}: cannot be read as UTF-8 text ({error}); give JSONL, plain or as .xz"
        ) from error
    except OSError as error:
        raise SpecprefillError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error


def parse_row(line: str, place: str) -> dict:
    """One row; raises SpecprefillError, naming its place, when it is not as `read_items` says."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SpecprefillError(f"{place}: not JSON ({error})") from error
    if not isinstance(row, dict) or not {"question", "answers"} <= set(row):
        raise SpecprefillError(f"{place}: needs the keys question and answers")
    if not {"context", "document", "documents"} & set(row):
        raise SpecprefillError(f"{place}: needs one of context, document, documents")
    if not isinstance(row["answers"], list) or not all(isinstance(answer, str) for answer in row["answers"]):
        raise SpecprefillError(f"{place}: answers must be a list of strings, empty for a question without an answer")
    if not isinstance(row["question"], str) or not isinstance(row.get("context", ""), str):
        raise SpecprefillError(f"{place}: question and context must be strings")
    if not row["question"].strip():
        raise SpecprefillError(f"{place}: the question is empty")
    if "context" not in row and not document_names(row):
        raise SpecprefillError(f"{place}: document must be a path, documents a list of them")
    cleaned = {key: replace_surrogates(row[key]) for key in ("question", "context") if key in row}
    return row | cleaned


def named_row(row: dict, number: int) -> dict:
    return row if row.get("id") is not None else row | {"id": number}


def document_names(row: dict) -> tuple[str, ...]:
    """The paths of a row's documents; none where they are not given as a path or a list of paths."""
    names = row.get("documents") or row.get("document")
    names = [names] if isinstance(names, str) else names
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def bury(
    context: str, contexts: Sequence[str], distractors: int, generator: random.Random
) -> tuple[Collection, tuple[int, int]]:
    """The context at a random place among `distractors` others, each a paragraph of one document; and its range."""
    others = generator.sample(contexts, min(len(contexts), distractors + 1))
    chosen = [other for other in others if other != context][:distractors]
    place = generator.randint(0, len(chosen))
    chosen.insert(place, context)
    start = sum(len(other) + 2 for other in chosen[:place])
    collection = Collection((one_page_document("context", "\n\n".join(chosen), "text/plain"),))
    return collection, (start, start + len(context))


def named_documents(row: dict, path: Path, cache: dict[tuple[str, ...], Collection]) -> Collection:
    names = document_names(row)
    if names not in cache:
        documents: list[Document] = read_documents([str(path.parent / name) for name in names])
        cache[names] = Collection(tuple(documents))
    return cache[names]
