"""Questions with and without an answer in their text, for `calibrate --answerable`."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specprefill_cli.training.corpus import read_rows, written_documents
from specprefill_cli.training.synthesis import WORDS

SQUAD = "squad11_train/du_test"
# Characters of a paragraph, paragraphs around it that speak of the same things, and rows to make of all of them.
PARAGRAPH, NEIGHBOURS, SQUAD_ROWS = range(301, 1_300), 3, 2_400
# Questions without an answer about a written document, and the fewest with an answer.
EVERYDAY_ABSENT, EVERYDAY_ANSWERED = 3, 2
NAME = re.compile(r"(?<!^)\b[A-Z][a-z]{2,}(?: [A-Z][a-z]+)*")
OTHER_NAME = re.compile(r"(?<![.!?] )(?<!^)\b[A-Z][a-z]{3,}(?: [A-Z][a-z]+)*")
NUMBER, VERB = re.compile(r"\b\d[\d,]*\b"), re.compile(r"\b(did|does|was|were|is|are|can|could|do)\b")
ANTONYMS = dict(WORDS["antonyms"]) | {second: first for first, second in WORDS["antonyms"]}
# Words of questions that begin with a capital only where a sentence does.
NO_NAMES = frozenset(
    "what which who whom whose when where how why did does do is are was were in on the a an for of to by at from after "
    "before during besides according".split()
)
# Numbers up to this one only grow.
SMALL_NUMBER = 30
# How likely an edit is taken: a number or an antonym, a name, and a negation.
NUMBER_WEIGHT, NAME_WEIGHT, NEGATION_WEIGHT, NEGATED = 3, 2, 1, 0.4


def edited(question: str, context: str, other_names: Sequence[str], rng: random.Random) -> str | None:
    """A question about a text changed so that the text does not answer it: another number, name, opposite or a negation."""
    changes: list[tuple[str, int]] = []

    def replace_at(match: re.Match[str], text: str, weight: int) -> None:
        changes.append((question[: match.start()] + text + question[match.end() :], weight))

    for match in NUMBER.finditer(question):
        value = int(match.group().replace(",", ""))
        other = str(value + rng.choice([-7, -3, -2, 2, 4, 9] if value > SMALL_NUMBER else [1, 2, 3]))
        if other not in context:
            replace_at(match, other, NUMBER_WEIGHT)
    for match in NAME.finditer(question):
        if match.group().lower() not in NO_NAMES:
            name = rng.choice(other_names)
            if name.lower() not in question.lower() and not {*name.lower().split()} & {*match.group().lower().split()}:
                replace_at(match, name, NAME_WEIGHT)
    for match in re.finditer(r"\b[a-z]+\b", question):
        if match.group() in ANTONYMS:
            replace_at(match, ANTONYMS[match.group()], NUMBER_WEIGHT)
    if VERB.search(question[1:]) and rng.random() < NEGATED:
        negated = VERB.sub(lambda verb: verb.group() + rng.choice([" not", " never", " not"]), question, count=1)
        changes.append((negated, NEGATION_WEIGHT))
    return rng.choices(*zip(*changes, strict=True))[0] if changes else None


def new_row(context: str, question: str, answers: Sequence[str] = ()) -> dict[str, Any]:
    """A row as `calibrate` reads it; answers: none if the context states none."""
    return {"context": context, "question": question, "answers": list(answers)}


def squad_questions(path: Path, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Rows of SQuAD 1.1: two questions of a paragraph, and two that it does not answer: edited, and of a neighbour."""
    by_context: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(path):
        if row["source"].startswith(SQUAD) and row["verbatim"]:
            by_context.setdefault(row["context"], []).append(row)
    contexts, made = list(by_context), 0
    order = list(range(NEIGHBOURS, len(contexts) - NEIGHBOURS))
    rng.shuffle(order)
    for place in order:
        context = contexts[place]
        rows = [*by_context[context]]
        if len(context) not in PARAGRAPH or made >= SQUAD_ROWS:
            continue
        rng.shuffle(rows)
        around = [contexts[place + step] for step in range(-NEIGHBOURS, NEIGHBOURS + 1) if step]
        names = [name for text in around for name in OTHER_NAME.findall(text) if name not in context]
        if len(rows) < 3 or len(names) < 3:
            continue
        edits = (edited(row["question"], context, names, rng) for row in rows[2:] + rows[:2])
        absent = [next(filter(None, edits), None), neighbour_question(context, around, by_context, rng)]
        answered = [new_row(context, row["question"], row["answers"]) for row in rows[:2]]
        made_here = answered + [new_row(context, question) for question in absent if question]
        yield from made_here
        made += len(made_here)


def neighbour_question(
    context: str, around: Sequence[str], by_context: dict[str, list[dict[str, Any]]], rng: random.Random
) -> str | None:
    """A question of a neighbouring paragraph that shares many words with this one, which does not hold its answers."""
    words = content_words(context)

    def shared(row: dict[str, Any]) -> float:
        asked = content_words(row["question"])
        return len(asked & words) / (1 + len(asked))

    rows = [row for text in around for row in by_context[text]]
    rows = [row for row in rows if not any(answer.lower() in context.lower() for answer in row["answers"])]
    return rng.choice(sorted(rows, key=shared, reverse=True)[:4])["question"] if rows else None


def content_words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


def squad2_questions(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of SQuAD 2.0's articles that have questions without an answer: these, and as many (at least two) with an answer."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        if not any(row["is_impossible"] for paragraph in article["paragraphs"] for row in paragraph["qas"]):
            continue
        for paragraph in article["paragraphs"]:
            absent = [row for row in paragraph["qas"] if row["is_impossible"]]
            answered = [row for row in paragraph["qas"] if not row["is_impossible"]][: max(2, len(absent))]
            for row in answered + absent:
                answers = [] if row["is_impossible"] else [answer["text"] for answer in row["answers"]]
                yield new_row(paragraph["context"], row["question"], answers)


def everyday_questions(path: Path, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Rows of written documents."""
    documents = written_documents(path)
    rng.shuffle(documents)
    for document in documents:
        absent = [question for question in document.questions if question.start < 0]
        answered = [question for question in document.questions if question.start >= 0]
        rng.shuffle(absent)
        rng.shuffle(answered)
        absent = absent[:EVERYDAY_ABSENT]
        yield from (new_row(document.text, question.text) for question in absent)
        answered = answered[: max(len(absent), EVERYDAY_ANSWERED)]
        yield from (new_row(document.text, question.text, [question.answer]) for question in answered)


def absent_questions(data: Path, squad2: Path, everyday: Path, seed: int) -> Iterator[dict[str, Any]]:
    """All rows. data: folder with qa/train.jsonl.xz; squad2: SQuAD 2.0's training file, or a part of it."""
    rng = random.Random(seed)
    yield from squad2_questions(squad2)
    yield from squad_questions(data / "qa" / "train.jsonl.xz", rng)
    yield from everyday_questions(everyday, rng)
