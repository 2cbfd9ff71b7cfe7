"""Streams of training text and question rows, with everything that overlaps the dev set dropped."""

from __future__ import annotations

import json
import lzma
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORD = re.compile(r"\w+")
OVERLAP_WORDS = 8


@dataclass(frozen=True)
class ContextQuestions:
    """One paragraph of a question-answering set with all its questions: (question, answer, answer start in characters).

    source: the set that it is from; paragraphs of one article stand side by side in most sets
    """

    context: str
    questions: tuple[tuple[str, str, int], ...]
    source: str = ""


def read_rows(path: Path) -> Iterator[dict]:
    """Rows of a JSONL file, plain or compressed with xz."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def word_grams(text: str, size: int = OVERLAP_WORDS) -> set[int]:
    """Hashes of all runs of `size` consecutive lower-cased words of a text."""
    words = WORD.findall(text.lower())
    return {hash(tuple(words[i : i + size])) for i in range(len(words) - size + 1)}


def dev_grams(data: Path) -> set[int]:
    """Hashes of the word 8-grams of every context and question of the dev set (read only to keep away from it)."""
    grams: set[int] = set()
    seen: set[str] = set()
    for path in sorted((data / "dev").glob("*.jsonl.xz")):
        for row in read_rows(path):
            if row["context"] not in seen:
                seen.add(row["context"])
                grams |= word_grams(row["context"])
            grams |= word_grams(row["question"])
    return grams


def stream_text(data: Path, characters_per_file: int, forbidden: set[int], skip: int = 0) -> Iterator[str]:
    """Passages of the pretraining files, at most `characters_per_file` from each file, split at blank lines.

    The first `skip` characters of each file are passed over. A passage that shares a word 8-gram with the dev set is
    dropped, and so are fragments below 200 characters.
    """
    for path in sorted((data / "pretrain").glob("*.jsonl.xz")):
        passed = taken = 0
        for row in read_rows(path):
            if passed < skip:
                passed += len(row["text"])
                continue
            for passage in split_passages(row["text"]):
                if forbidden and not forbidden.isdisjoint(word_grams(passage)):
                    continue
                taken += len(passage)
                yield passage
            if taken >= characters_per_file:
                break


def split_passages(text: str, smallest: int = 200, largest: int = 2_500) -> Iterator[str]:
    """Paragraphs joined to passages of `smallest` to about `largest` characters; lone short ones are left out."""
    passage = ""
    for paragraph in text.split("\n"):
        paragraph = paragraph.strip()
        if not paragraph or len(paragraph) > 4 * largest:
            continue
        passage = f"{passage}\n{paragraph}" if passage else paragraph
        if len(passage) >= largest // 2:
            yield passage
            passage = ""
    if len(passage) >= smallest:
        yield passage


def question_groups(
    data: Path, forbidden: set[int], longest_context: int = 3_000
) -> tuple[list[ContextQuestions], int]:
    """All verbatim question rows grouped by their context, and the number of rows dropped for overlap with dev.

    Contexts of more than `longest_context` characters (mostly whole contracts) are left out.
    """
    grouped: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    sources: dict[str, str] = {}
    clean: dict[str, bool] = {}
    dropped = 0
    for path in sorted((data / "qa").glob("*.jsonl.xz")):
        for row in read_rows(path):
            context, question = row["context"], row["question"].strip()
            if not row["verbatim"] or not question or len(context) > longest_context:
                continue
            found = locate(context, question, row["answers"])
            if found is None:
                continue
            if context not in clean:
                clean[context] = forbidden.isdisjoint(word_grams(context))
            if not clean[context] or not forbidden.isdisjoint(word_grams(question)):
                dropped += 1
                continue
            grouped[context].append((question, found[0], found[1]))
            sources.setdefault(context, row.get("source", ""))
    return [ContextQuestions(context, tuple(rows), sources[context]) for context, rows in grouped.items()], dropped


def locate(context: str, question: str, answers: list[str], longest: int = 160) -> tuple[str, int] | None:
    """The first answer that stands in the context as whole words, with a character position.

    Of several places the first one whose surroundings share most words with the question. "Yes" and "no" stand nowhere.
    """
    asked = set(WORD.findall(question.lower()))
    for answer in answers:
        answer = answer.strip()
        if not answer or len(answer) > longest or answer.lower() in ("yes", "no"):
            continue
        places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", context)]
        if places:
            return answer, max(places, key=lambda place: shared_words(context, place, len(answer), asked))
    return None


def shared_words(context: str, place: int, size: int, asked: set[str], around: int = 120) -> int:
    """How many of the words that are asked with stand within `around` characters of a place."""
    near = context[max(0, place - around) : place + size + around]
    return len(asked.intersection(WORD.findall(near.lower())))
