"""Blocks of training documents: prose with synthesised facts in it, tables, and lists of keys and values, from words.json."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from specprefill_cli.record import NOT_FOUND

WORDS = json.loads((resources.files("specprefill_cli.training") / "words.json").read_text(encoding="utf-8"))
LISTS: Mapping[str, Sequence[str]] = WORDS["lists"]
MONTHS: Sequence[str] = WORDS["pools"]["month"]
WEEKDAYS: Sequence[str] = WORDS["pools"]["weekday"]
# By kind of value: forms. A form is a text with slots, or such a text and its weight. `fill` explains slots.
FORMS: Mapping[str, Sequence[Any]] = WORDS["forms"] | {
    value_kind: [[f"{{2-{largest}}} {{{value_kind}_units}}", 3], [f"{{2-{largest * 10}/10}} {{{value_kind}_units}}", 2]]
    for value_kind, (_, largest) in WORDS["quantities"].items()
}
CHOICES: Mapping[str, Sequence[str]] = {
    **LISTS,
    **WORDS["pools"],
    **{f"{value_kind}_units": units for value_kind, (units, _) in WORDS["quantities"].items()},
}
SLOT = re.compile(r"\{([^{}]+)\}")
# A range of whole numbers, perhaps divided (to one decimal) or multiplied, perhaps with a format.
NUMBER = re.compile(r"(-?\d+)-(\d+)(?:/(\d+)|\*(\d+))?(?::(.+))?")


def draw(value_kind: str, pools: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """A random value: a word of the pool or list of that name, or a form of that kind.

    Raises KeyError for an unknown kind.
    """
    if value_kind in pools or value_kind in CHOICES:
        return str(rng.choice(pools[value_kind] if value_kind in pools else CHOICES[value_kind]))
    forms = [(form, 1) if isinstance(form, str) else form for form in FORMS[value_kind]]
    form = rng.choices([text for text, _ in forms], [weight for _, weight in forms])[0]
    return SLOT.sub(lambda slot: fill(slot.group(1), pools, rng), form)


def fill(slot: str, pools: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """The text of a slot: `2-99:02` a number, `#4` that many digits, `kind` a value, `Kind` a value with a capital."""
    if slot.startswith("#"):
        return "".join(rng.choice("0123456789") for _ in range(int(slot[1:])))
    if number := NUMBER.fullmatch(slot):
        low, high, divisor, factor, form = number.groups()
        drawn = rng.randint(int(low), int(high))
        return f"{drawn / int(divisor):.1f}" if divisor else format(drawn * int(factor or 1), form or "")
    value = draw(slot.lower(), pools, rng)
    return value[:1].upper() + value[1:] if slot != slot.lower() else value


SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")


@dataclass(frozen=True)
class Question:
    """A question with its answer.

    start: first character of the answer in the block or document; -1 for an unanswerable question
    fact: (group of relations, subject) of a synthesised question
    """

    text: str
    answer: str
    start: int
    fact: tuple[str, str] | None = None

    def shift(self, offset: int) -> Question:
        return replace(self, start=self.start + offset) if self.start >= 0 else self


@dataclass(frozen=True)
class Block:
    """A piece of a document with questions about it."""

    text: str
    questions: tuple[Question, ...] = ()


def join_blocks(blocks: Sequence[Block], separator: str) -> Block:
    """Join blocks to a text with all their questions."""
    text, questions = "", []
    for block in blocks:
        text += separator if text else ""
        questions += [question.shift(len(text)) for question in block.questions]
        text += block.text
    return Block(text, tuple(questions))


class FactBook:
    """Draws statements with their questions from the templates of facts.json."""

    def __init__(self) -> None:
        source = resources.files("specprefill_cli.training") / "facts.json"
        book = json.loads(source.read_text(encoding="utf-8"))
        self.relations: Sequence[Mapping] = book["relations"]
        self.pools: Mapping[str, Sequence[str]] = book["pools"] | WORDS["pools"]
        self.domains = sorted({relation["domain"] for relation in self.relations})

    def statements(self, relation: Mapping, count: int, rng: random.Random, stated: set) -> list[Block]:
        """Draw up to `count` statements of a relation about different subjects; a single statement where it has no subject.

        stated: (group, subject) pairs that the document states already, because a second value would contradict the first
        """
        subjects = {draw(relation["subject"], self.pools, rng) if relation["subject"] else "" for _ in range(count)}
        new_subjects = sorted(subject for subject in subjects if (group_of(relation), subject) not in stated)
        stated.update((group_of(relation), subject) for subject in new_subjects)
        return [self.state(relation, subject, rng) for subject in new_subjects]

    def state(self, relation: Mapping, subject: str, rng: random.Random) -> Block:
        """Draw a sentence that states the relation of `subject` with a random value, and the question for the value."""
        value = draw(relation["value"], self.pools, rng)
        text = rng.choice(relation["statements"])
        question = rng.choice(relation["questions"]).replace("{subject}", subject)
        text = text.replace("{subject_cap}", capital(subject)).replace("{subject}", subject)
        answer = capital(value) if "{value_cap}" in text else value
        start = min(index for index in (text.find("{value_cap}"), text.find("{value}")) if index >= 0)
        text = text.replace("{value_cap}", answer).replace("{value}", answer)
        return Block(text, (Question(capital(question), answer, start, (group_of(relation), subject)),))


def group_of(relation: Mapping) -> str:
    """The group of relations that answer each other's questions: "on Mondays" says when and how often."""
    return relation.get("group", relation["name"])


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def weave(prose: str, statements: Sequence[Block], rng: random.Random) -> Block:
    """Insert each statement between two random sentences of the prose."""
    pieces = [Block(sentence) for sentence in SENTENCE_END.split(prose) if sentence]
    for statement in statements:
        pieces.insert(rng.randint(0, len(pieces)), statement)
    return join_blocks(pieces, " ")


def fact_block(book: FactBook, domain: str, prose: str, count: int, rng: random.Random, stated: set) -> Block:
    """Prose with about `count` facts of a domain; half of the relations are stated for several subjects.

    stated: as in `FactBook.statements`; updated with the facts of this block, withheld ones included
    """
    relations = [relation for relation in book.relations if relation["domain"] == domain]
    statements: list[Block] = []
    for relation in rng.sample(relations, min(count, len(relations))):
        statements += book.statements(relation, rng.choice([1, 1, 2, 3]), rng, stated)
        if len(statements) >= count:
            break
    rng.shuffle(statements)
    # Withheld facts make questions that only a search among similar facts shows to be unanswerable.
    withheld = [statement for statement in statements if rng.random() < 0.12] if len(statements) > 2 else []
    statements = [statement for statement in statements if statement not in withheld]
    absent = [replace(question, answer=NOT_FOUND, start=-1) for block in withheld for question in block.questions]
    block = join_blocks(statements, " ") if statements and rng.random() < 0.35 else weave(prose, statements, rng)
    if rng.random() < 0.3:
        heading = f"{rng.choice(['', '# ', '## ', '3.2 '])}{capital(rng.choice(relations)['name'].replace('_', ' '))}\n"
        block = Block(heading + block.text, tuple(question.shift(len(heading)) for question in block.questions))
    return Block(block.text, (*block.questions, *absent))


def table_block(book: FactBook, rng: random.Random) -> Block:
    """A Markdown or plain-text table; its questions name a row and a column and ask for the cell."""
    columns = rng.sample(list(WORDS["columns"]), rng.randint(1, 3))
    headers = [rng.choice(WORDS["columns"][column]) for column in columns]
    row_kind = rng.choice(["city", "product", "machine_part", "project", "company"])
    rows = sorted({draw(row_kind, book.pools, rng).removeprefix("the ") for _ in range(rng.randint(3, 7))})
    rng.shuffle(rows)
    markdown = rng.random() < 0.6
    separator = " | " if markdown else rng.choice(["  ", " ", "\t"])
    left, right = ("| ", " |") if markdown else ("", "")
    text = left + separator.join(["Item", *map(capital, headers)]) + right
    if markdown:
        text += "\n| " + " | ".join(["---"] * (len(headers) + 1)) + " |"
    questions = []
    for row in rows:
        text += "\n" + left + capital(row)
        for header, column in zip(headers, columns, strict=True):
            value = draw(column, book.pools, rng)
            text += separator
            form = rng.choice(["What is the {head} of {row}?", "What {head} is given for {row}?", "{head} for {row}?"])
            questions.append(Question(capital(form.format(head=header, row=row)), value, len(text)))
            text += value
        text += right
    return Block(text, tuple(questions))


def key_value_block(book: FactBook, rng: random.Random) -> Block:
    """Lines `key: value`, or sentences with codes such as needle tests use."""
    text, questions = "", []
    needles = rng.random() < 0.5
    for _ in range(rng.randint(2, 6)):
        value_kind = rng.choice(list(WORDS["labels"]))
        value = draw(value_kind, book.pools, rng)
        owner = fill(rng.choice(["Brand", "City"]), {}, rng)
        label = rng.choice(WORDS["labels"][value_kind])
        if needles:
            leads = ["The {label} for {owner} is ", "The {owner} {label} is ", "For {owner} the {label} is "]
            forms, end = ["What is the {label} for {owner}?", "What is the {owner} {label}?"], ". "
        else:
            leads = ["{owner} {label}: ", "{label} ({owner}): ", "- {owner} {label}: "]
            forms = ["What is the {owner} {label}?", "{owner} {label}?", "What {label} does {owner} have?"]
            end = "\n"
        lead, form = rng.choice(leads), rng.choice(forms)
        text += capital(lead.format(label=label, owner=owner))
        questions.append(Question(capital(form.format(label=label, owner=owner)), value, len(text)))
        text += value + end
    return Block(text.rstrip(), tuple(questions))
