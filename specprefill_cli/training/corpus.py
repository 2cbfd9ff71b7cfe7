"""Streams of training text and question rows without overlap with the dev set."""

import json
import lzma
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.training.synthesis import NOT_FOUND, Block, Question

# Everyday documents with paraphrased questions, written for training by a large language model; see `written_documents`.
EVERYDAY = Path(__file__).with_name("everyday.jsonl.xz")
WORD = re.compile(r"\w+")
OVERLAP_WORDS = 8
LONGEST_CONTEXT = 3_000
LONGEST_ANSWER = 160


@dataclass(frozen=True)
class ContextQuestions:
    """A paragraph of a question-answering set with all its questions: (question, answer, answer start in characters).

    source: name of the set; most sets keep paragraphs of an article together
    """

    context: str
    questions: tuple[tuple[str, str, int], ...]
    source: str = ""


def read_rows(path: Path) -> Iterator[dict]:
    """Rows of a JSONL file compressed with xz."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def written_documents(path: Path = EVERYDAY) -> list[Block]:
    """Documents with their questions, in the file's order.

    Each row has a text, and questions with answer and start, its first character in the text. Unanswerable questions have
    the answer null and the start -1.
    """
    return [
        Block(
            row["text"], tuple(Question(q["question"], q["answer"] or NOT_FOUND, q["start"]) for q in row["questions"])
        )
        for row in read_rows(path)
    ]


def word_grams(text: str) -> set[int]:
    """Hashes of all runs of OVERLAP_WORDS consecutive lower-cased words of a text."""
    words = WORD.findall(text.lower())
    return {hash(tuple(words[i : i + OVERLAP_WORDS])) for i in range(len(words) - OVERLAP_WORDS + 1)}


def dev_grams(data: Path) -> set[int]:
    """Hashes of the word 8-grams of every context and question of the dev set, read only to avoid overlap."""
    texts: set[str] = set()
    for path in sorted((data / "dev").glob("*.jsonl.xz")):
        for row in read_rows(path):
            texts |= {row["context"], row["question"]}
    if not texts:
        raise SpecprefillError(f"{data / 'dev'}: holds no *.jsonl.xz of the dev set, which no training text may share")
    return set().union(*map(word_grams, texts))


def stream_text(data: Path, characters_per_file: int, forbidden: set[int], skip: int = 0) -> Iterator[str]:
    """Passages of the pretraining files, at most `characters_per_file` from each file, split at line breaks.

    The first `skip` characters of each file are passed over. A passage that shares a word 8-gram with the dev set is
    dropped.
    """
    for path in sorted((data / "pretrain").glob("*.jsonl.xz")):
        skipped = taken = 0
        for row in read_rows(path):
            if skipped < skip:
                skipped += len(row["text"])
                continue
            for passage in split_passages(row["text"]):
                if forbidden and not forbidden.isdisjoint(word_grams(passage)):
                    continue
                taken += len(passage)
                yield passage
            if taken >= characters_per_file:
                break


def split_passages(text: str, smallest: int = 200, largest: int = 2_500) -> Iterator[str]:
    """Paragraphs joined to passages of `smallest` to about `largest` characters; a shorter rest is dropped."""
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


def question_groups(data: Path, forbidden: set[int]) -> tuple[list[ContextQuestions], int]:
    """All verbatim question rows grouped by their context, and the number of rows dropped for overlap with dev.

    Contexts of more than LONGEST_CONTEXT characters (mostly whole contracts) are left out.
    """
    grouped: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    sources: dict[str, str] = {}
    clean: dict[str, bool] = {}
    dropped = 0
    for path in sorted((data / "qa").glob("*.jsonl.xz")):
        for row in read_rows(path):
            context, question = row["context"], row["question"].strip()
            if not row["verbatim"] or not question or len(context) > LONGEST_CONTEXT:
                continue
            answer = locate(context, question, row["answers"])
            if answer is None:
                continue
            if context not in clean:
                clean[context] = forbidden.isdisjoint(word_grams(context))
            if not clean[context] or not forbidden.isdisjoint(word_grams(question)):
                dropped += 1
                continue
            grouped[context].append((question, *answer))
            sources.setdefault(context, row.get("source", ""))
    return [ContextQuestions(context, tuple(rows), sources[context]) for context, rows in grouped.items()], dropped


def locate(context: str, question: str, answers: list[str]) -> tuple[str, int] | None:
    """Find the first answer that occurs in the context as whole words, with its character position.

    Of several occurrences, returns that with the most words of the question around it. "Yes" and "no" are no spans.
    """
    question_words = set(WORD.findall(question.lower()))

    def shared_words(start: int, size: int, around: int = 120) -> int:
        near = context[max(0, start - around) : start + size + around]
        return len(question_words.intersection(WORD.findall(near.lower())))

    for answer in map(str.strip, answers):
        if not answer or len(answer) > LONGEST_ANSWER or answer.lower() in ("yes", "no"):
            continue
        starts = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", context)]
        if starts:
            return answer, max(starts, key=lambda start: shared_words(start, len(answer)))
    return None
