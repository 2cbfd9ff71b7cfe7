"""Real questions under new names: numbers and proper names of a document are exchanged wherever they occur.

The few thousand contexts with written questions are seen many times. With names that change, an answer cannot be
learnt by heart: it has to be found in the text (entity replacement, Longpre et al., arXiv 2109.05052).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from specprefill_cli.training.synthesis import Block, Question
from specprefill_cli.training.values import MONTHS, WEEKDAYS

NAME_OR_NUMBER = re.compile(r"\b(?:[A-Z][a-z]{2,}|\d{2,})\b")
NAME_INSIDE_SENTENCE = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
ORDINARY_WORD = re.compile(r"\b[a-z]{3,}\b")
KEPT = frozenset((*MONTHS, *WEEKDAYS))


@dataclass(frozen=True)
class Names:
    """The names to exchange others for, as often as they occur, and words that are no names when they are capitalised."""

    pool: Sequence[str]
    ordinary: frozenset[str]


def names_in(passages: Sequence[str], most: int = 2_000) -> Names:
    """Capitalised words from inside the sentences of about `most` passages that nowhere in them are written small."""
    spread = passages[:: max(1, len(passages) // most)]
    ordinary = ordinary_words(spread)
    found = (name for passage in spread for name in NAME_INSIDE_SENTENCE.findall(passage))
    return Names([name for name in found if name.lower() not in ordinary], ordinary)


def ordinary_words(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(word for text in texts for word in ORDINARY_WORD.findall(text))


def renamed(blocks: Sequence[Block], known: Names, rng: random.Random) -> list[Block]:
    """The blocks of one document with other names and numbers, alike in all texts, questions and answers.

    A question whose answer no longer stands where it stood is left out.
    """
    pool = known.pool
    # "In The Times" makes no name of every "The", nor ", When" of every question.
    ordinary = known.ordinary | ordinary_words(block.text for block in blocks)
    found_names = {name for block in blocks for name in NAME_INSIDE_SENTENCE.findall(block.text)} - KEPT
    names = {name for name in found_names if name.lower() not in ordinary}
    exchanged: dict[str, str] = {}

    def other(match: re.Match) -> str:
        word = match.group()
        if word not in exchanged and (word.isdigit() or (word in names and pool)):
            draw = partial(other_number, word, rng) if word.isdigit() else partial(rng.choice, pool)
            exchanged[word] = unused(draw, exchanged)
        return exchanged.get(word, word)

    def changed(text: str) -> str:
        return NAME_OR_NUMBER.sub(other, text)

    found = []
    for block in blocks:
        text = changed(block.text)
        questions = []
        for question in block.questions:
            answer = changed(question.answer)
            start = len(changed(block.text[: question.start]))
            if text[start : start + len(answer)] == answer:
                questions.append(Question(changed(question.text), answer, start))
        found.append(Block(text, tuple(questions)))
    return found


def unused(draw: Callable[[], str], exchanged: Mapping[str, str], tries: int = 8) -> str:
    """What is drawn, and not yet another name's: two people of a document must not become one. Gives up after `tries`."""
    taken = set(exchanged.values())
    return next((word for word in (draw() for _ in range(tries)) if word not in taken), draw())


def other_number(digits: str, rng: random.Random) -> str:
    """A number of as many digits; a year stays a year."""
    if len(digits) == 4 and digits[:2] in ("17", "18", "19", "20"):
        return str(rng.randint(1700, 2029))
    return str(rng.randint(1, 9)) + "".join(str(rng.randint(0, 9)) for _ in digits[1:])
