"""Blocks of training documents: prose with synthesised facts hidden in it, tables, and lists of keys and values."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources

from specprefill_cli.training.values import draw, invented, place_name

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")
NOT_FOUND = "not found"


@dataclass(frozen=True)
class Question:
    """A question with its answer and the answer's character position in the block or document (-1: not there).

    fact: group of relations and subject that it asks for, where it was synthesised
    """

    text: str
    answer: str
    start: int
    fact: tuple[str, str] | None = None

    def moved(self, by: int) -> Question:
        return replace(self, start=self.start + by) if self.start >= 0 else self


@dataclass(frozen=True)
class Block:
    text: str
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True)
class Statement:
    text: str
    question: Question


class FactBook:
    """Draws statements with their questions from the templates of facts.json."""

    def __init__(self) -> None:
        source = resources.files("specprefill_cli.training") / "facts.json"
        book = json.loads(source.read_text(encoding="utf-8"))
        self.relations: Sequence[Mapping] = book["relations"]
        self.pools: Mapping[str, Sequence[str]] = book["pools"]
        self.domains = sorted({relation["domain"] for relation in self.relations})

    def relations_of(self, domain: str) -> list[Mapping]:
        return [relation for relation in self.relations if relation["domain"] == domain]

    def statements(self, relation: Mapping, count: int, rng: random.Random, stated: set) -> list[Statement]:
        """Up to `count` statements of one relation about different subjects (one where it has no subject).

        stated: the (group, subject) that the document states already; a second value would contradict the first
        """
        subjects = {draw(relation["subject"], self.pools, rng) if relation["subject"] else "" for _ in range(count)}
        fresh = sorted(subject for subject in subjects if (group_of(relation), subject) not in stated)
        stated.update((group_of(relation), subject) for subject in fresh)
        return [self.state(relation, subject, rng) for subject in fresh]

    def state(self, relation: Mapping, subject: str, rng: random.Random) -> Statement:
        value = draw(relation["value"], self.pools, rng)
        text = rng.choice(relation["statements"])
        question = rng.choice(relation["questions"]).replace("{subject}", subject)
        text = text.replace("{subject_cap}", capital(subject)).replace("{subject}", subject)
        answer = capital(value) if "{value_cap}" in text else value
        start = min(place for place in (text.find("{value_cap}"), text.find("{value}")) if place >= 0)
        text = text.replace("{value_cap}", answer).replace("{value}", answer)
        return Statement(text, Question(capital(question), answer, start, (group_of(relation), subject)))


def group_of(relation: Mapping) -> str:
    """The relations of a group answer each other's questions: "on Mondays" tells when and how often."""
    return relation.get("group", relation["name"])


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def weave(prose: str, statements: Sequence[Statement], rng: random.Random) -> Block:
    """Insert each statement between two sentences of the prose, at random places."""
    pieces: list[str | Statement] = [sentence for sentence in SENTENCE_END.split(prose) if sentence]
    for statement in statements:
        pieces.insert(rng.randint(0, len(pieces)), statement)
    return assemble(pieces, " ")


def assemble(pieces: Sequence[str | Statement], separator: str) -> Block:
    text, questions = "", []
    for piece in pieces:
        if text:
            text += separator
        if isinstance(piece, Statement):
            questions.append(piece.question.moved(len(text)))
            text += piece.text
        else:
            text += piece
    return Block(text, tuple(questions))


def fact_block(book: FactBook, domain: str, prose: str, count: int, rng: random.Random, stated: set) -> Block:
    """Prose with about `count` facts of one domain; half of the relations are stated of several subjects.

    stated: what the document states already (see `FactBook.statements`); grows by what this block states or hides
    """
    relations = book.relations_of(domain)
    statements: list[Statement] = []
    for relation in rng.sample(relations, min(count, len(relations))):
        statements += book.statements(relation, rng.choice([1, 1, 2, 3]), rng, stated)
        if len(statements) >= count:
            break
    rng.shuffle(statements)
    # Facts of the same kind that are left out: only a reader who looks for them can say that they are not there.
    hidden = [statement for statement in statements if rng.random() < 0.12] if len(statements) > 2 else []
    statements = [statement for statement in statements if statement not in hidden]
    absent = tuple(replace(statement.question, answer=NOT_FOUND, start=-1) for statement in hidden)
    if statements and rng.random() < 0.35:
        block = assemble(statements, " ")
    else:
        block = weave(prose, statements, rng)
    if rng.random() < 0.3:
        heading = f"{rng.choice(['', '# ', '## ', '3.2 '])}{capital(rng.choice(relations)['name'].replace('_', ' '))}\n"
        block = Block(heading + block.text, tuple(question.moved(len(heading)) for question in block.questions))
    return Block(block.text, block.questions + absent)


def table_block(book: FactBook, rng: random.Random) -> Block:
    """A Markdown or plain table; its questions ask for the cell at a row's name and a column's name."""
    kinds = ["money", "percent", "integer", "large_number", "date", "weight", "length", "code", "duration", "person"]
    columns = rng.sample(kinds, rng.randint(1, 3))
    names = {
        "money": ["price", "cost", "fee", "budget"], "percent": ["share", "rate", "growth"],
        "integer": ["number of units", "count", "staff"], "large_number": ["visitors", "sales", "members"],
        "date": ["start date", "deadline"], "weight": ["weight", "harvest"], "length": ["length", "height"],
        "code": ["part number", "order code"], "duration": ["interval", "duration"], "person": ["contact", "manager"],
    }  # fmt: skip
    heads = [rng.choice(names[column]) for column in columns]
    row_kind = rng.choice(["city", "product", "machine_part", "project", "company"])
    rows = sorted({draw(row_kind, book.pools, rng).removeprefix("the ") for _ in range(rng.randint(3, 7))})
    rng.shuffle(rows)
    piped = rng.random() < 0.6
    separator = " | " if piped else rng.choice(["  ", " ", "\t"])
    edge = ("| ", " |") if piped else ("", "")
    lines = [edge[0] + separator.join(["Item", *map(capital, heads)]) + edge[1]]
    if piped:
        lines.append("| " + " | ".join(["---"] * (len(heads) + 1)) + " |")
    text, questions = "\n".join(lines), []
    for row in rows:
        text += "\n" + edge[0] + capital(row)
        for head, column in zip(heads, columns, strict=True):
            value = draw(column, book.pools, rng)
            text += separator
            form = rng.choice(["What is the {head} of {row}?", "What {head} is given for {row}?", "{head} for {row}?"])
            questions.append(Question(capital(form.format(head=head, row=row)), value, len(text)))
            text += value
        text += edge[1]
    return Block(text, tuple(questions))


def key_value_block(book: FactBook, rng: random.Random) -> Block:
    """Lines `key: value`, or needle sentences with codes."""
    text, questions = "", []
    needle = rng.random() < 0.5
    for _ in range(rng.randint(2, 6)):
        kind = rng.choice(["code", "integer", "person", "city", "date", "money", "version", "email", "room"])
        value = draw(kind, book.pools, rng)
        owner = rng.choice([invented, place_name])(rng)
        label = rng.choice({
            "code": ["access code", "serial number", "secret code", "reference"], "integer": ["magic number", "lot size"],
            "person": ["contact person", "owner"], "city": ["location", "home town"], "date": ["expiry date", "due date"],
            "money": ["deposit", "balance"], "version": ["version", "firmware"], "email": ["address", "mailbox"],
            "room": ["meeting place", "storage room"],
        }[kind])  # fmt: skip
        if needle:
            lead = rng.choice(["The {label} for {owner} is ", "The {owner} {label} is ", "For {owner} the {label} is "])
            question = rng.choice(["What is the {label} for {owner}?", "What is the {owner} {label}?"])
            close = ". "
        else:
            lead = rng.choice(["{owner} {label}: ", "{label} ({owner}): ", "- {owner} {label}: "])
            question = rng.choice(
                ["What is the {owner} {label}?", "{owner} {label}?", "What {label} does {owner} have?"]
            )
            close = "\n"
        text += capital(lead.format(label=label, owner=owner))
        questions.append(Question(capital(question.format(label=label, owner=owner)), value, len(text)))
        text += value + close
    return Block(text.rstrip(), tuple(questions))
