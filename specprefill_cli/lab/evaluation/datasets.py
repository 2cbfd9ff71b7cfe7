"""Question sets: JSONL, plain or compressed with xz."""

import json
import lzma
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from specprefill_cli.documents.cleaning import replace_surrogates
from specprefill_cli.documents.collect import read_collection
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.errors import SpecprefillError


@dataclass(frozen=True)
class Item:
    """A question with its acceptable answers (none if it cannot be answered) and its documents.

    evidence: character range of the row's own context in the collection's text
    facts: character ranges of the passages that the row names as evidence; an answer needs all of them
    labels: the row's other strings, such as its language, by which figures can be divided
    buried: whether the context lies among distractors; False for rows that name documents
    """

    identifier: str
    question: str
    answers: tuple[str, ...]
    collection: Collection
    evidence: tuple[int, int]
    buried: bool = False
    facts: tuple[tuple[int, int], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def read_items(path: Path, limit: int | None, distractors: int, seed: int) -> list[Item]:
    """Read rows `{id, context | document | documents, question, answers}` of a file; paths are relative to the file.

    A row may name passages that stand verbatim in its documents as `evidence`, a list of strings. A row of a table may be
    named without its columns.
    limit: how many rows to draw at random; distractors: how many of the file's other contexts to put around each row's own
    seed: of the draw and of the distractors

    Raises SpecprefillError for a malformed row, with its line.
    """
    rows = read_rows(path)
    if not rows:
        raise SpecprefillError(f"{path}: holds no questions; give a JSONL file with a row for each")
    generator = random.Random(seed)
    drawn = generator.sample(rows, limit) if limit is not None and limit < len(rows) else rows
    contexts = sorted({row["context"] for row in rows if "context" in row})
    if contexts and len(contexts) <= distractors:
        raise SpecprefillError(f"{path}: has {len(contexts)} contexts, too few for --distractors {distractors}")
    read = cache(lambda names: read_collection([str(path.parent / name) for name in names], strict=True))
    items = []
    for row in drawn:
        if "context" in row:
            collection, evidence = bury(row["context"], contexts, distractors, generator)
        else:
            collection = read(document_names(row))
            evidence = 0, len(collection.text)
        items.append(
            Item(
                identifier=str(row["id"]),
                question=row["question"],
                answers=tuple(row["answers"]),
                collection=collection,
                evidence=evidence,
                buried="context" in row and distractors > 0,
                facts=fact_ranges(row, collection.text, evidence, path),
                labels={key: value for key, value in row.items() if isinstance(value, str)},
            )
        )
    return items


def read_rows(path: Path) -> list[dict]:
    """Read the rows of a file; a row without an id gets its line number, from 1."""
    if not path.is_file():
        raise SpecprefillError(f"{path}: no such file; give a JSONL file of questions")
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        # Windows programs put a byte-order mark before UTF-8.
        with opener(path, "rt", encoding="utf-8-sig") as lines:
            return [
                parse_row(line, f"{path}, line {number}", number)
                for number, line in enumerate(lines, 1)
                if line.strip()
            ]
    except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
        raise SpecprefillError(
            f"{path}: cannot be read as UTF-8 text ({error}); give JSONL, plain or as .xz"
        ) from error
    except OSError as error:
        raise SpecprefillError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error


def parse_row(line: str, place: str, number: int) -> dict:
    """Parse a row; `number` becomes the id of a row without an id.

    Raises SpecprefillError, naming its place, for a row that does not have the format of `read_items`.
    """
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
    evidence = row.get("evidence", [])
    if not isinstance(evidence, list) or not all(isinstance(passage, str) and passage for passage in evidence):
        raise SpecprefillError(f"{place}: evidence must be a list of strings")
    if "context" not in row and not document_names(row):
        raise SpecprefillError(f"{place}: document must be a path, documents a list of them")
    if row.get("id") is None:
        row["id"] = number
    return row | {key: replace_surrogates(row[key]) for key in ("question", "context") if key in row}


def fact_ranges(row: dict, text: str, context: tuple[int, int], path: Path) -> tuple[tuple[int, int], ...]:
    """Character ranges of a row's evidence in its own part of the text. Raises SpecprefillError for a missing passage."""
    start, end = context
    ranges = []
    for passage in row.get("evidence", ()):
        match = passage_pattern(passage).search(text, start, end)
        if match is None:
            raise SpecprefillError(
                f"{path}, row {row['id']}: its evidence does not stand in its documents: {passage!r}"
            )
        ranges.append(match.span())
    return tuple(ranges)


def passage_pattern(passage: str) -> re.Pattern[str]:
    """Finds a passage verbatim; the cells of a table's row with or without the names of their columns."""
    cells = [cell for cell in re.split(r"\s*\|\s*", passage) if cell]
    if len(cells) < 2:
        return re.compile(re.escape(passage))
    return re.compile(r"(?:\s*\|)+\s*".join(rf"(?:[^|\n]+: )?{re.escape(cell)}" for cell in cells))


def document_names(row: dict) -> tuple[str, ...]:
    """The paths of a row's documents; empty unless given as a path or a list of paths."""
    names = row.get("documents") or row.get("document")
    names = [names] if isinstance(names, str) else names
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def bury(
    context: str, contexts: Sequence[str], distractors: int, generator: random.Random
) -> tuple[Collection, tuple[int, int]]:
    """Put the context at a random place among `distractors` others; return the document and the context's character range."""
    drawn_contexts = generator.sample(contexts, min(len(contexts), distractors + 1))
    buried_contexts = [drawn for drawn in drawn_contexts if drawn != context][:distractors]
    position = generator.randint(0, len(buried_contexts))
    buried_contexts.insert(position, context)
    start = sum(len(earlier) + 2 for earlier in buried_contexts[:position])
    collection = Collection((one_page_document("context", "\n\n".join(buried_contexts)),))
    return collection, (start, start + len(context))
