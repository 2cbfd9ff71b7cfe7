"""Renames written questions: replaces numbers and proper names of a document wherever they occur.

Training repeats the few thousand contexts with written questions many times. With changing names a model cannot memorise
an answer and has to find it in the text (entity replacement, Longpre et al., arXiv 2109.05052).
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from specprefill_cli.training.synthesis import MONTHS, WEEKDAYS, Block

NAME_OR_NUMBER = re.compile(r"\b(?:[A-Z][a-z]{2,}|\d{2,})\b")
NAME_INSIDE_SENTENCE = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
LOWER_CASE_WORD = re.compile(r"\b[a-z]{3,}\b")
KEPT = frozenset((*MONTHS, *WEEKDAYS))


@dataclass(frozen=True)
class Names:
    """pool: new names, repeated by frequency; ordinary: words that are no names even when capitalised."""

    pool: Sequence[str]
    ordinary: frozenset[str]


def names_in(passages: Sequence[str], sample: int = 2_000) -> Names:
    """Find words that are capitalised inside sentences and never written in lower case, in about `sample` passages."""
    spread = passages[:: max(1, len(passages) // sample)]
    ordinary = lower_case_words(spread)
    names = (name for passage in spread for name in NAME_INSIDE_SENTENCE.findall(passage))
    return Names([name for name in names if name.lower() not in ordinary], ordinary)


def lower_case_words(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(word for text in texts for word in LOWER_CASE_WORD.findall(text))


def rename_blocks(blocks: Sequence[Block], names_pool: Names, rng: random.Random) -> list[Block]:
    """Replace names and numbers of a document's blocks, alike in all texts, questions and answers.

    Questions are dropped where the new answer is not at its position in the new text.
    """
    # "The" in "In The Times" and "When" after a comma are no names.
    ordinary = names_pool.ordinary | lower_case_words(block.text for block in blocks)
    capitalised = {name for block in blocks for name in NAME_INSIDE_SENTENCE.findall(block.text)} - KEPT
    names = {name for name in capitalised if name.lower() not in ordinary}
    replacements: dict[str, str] = {}

    def replacement(match: re.Match) -> str:
        word = match.group()
        if word not in replacements and (word.isdigit() or (word in names and names_pool.pool)):
            draw = partial(other_number, word, rng) if word.isdigit() else partial(rng.choice, names_pool.pool)
            replacements[word] = draw_unused(draw, replacements)
        return replacements.get(word, word)

    def rename(text: str) -> str:
        return NAME_OR_NUMBER.sub(replacement, text)

    renamed = []
    for block in blocks:
        text = rename(block.text)
        questions = []
        for question in block.questions:
            answer = rename(question.answer)
            start = len(rename(block.text[: question.start]))
            if text[start : start + len(answer)] == answer:
                questions.append(replace(question, text=rename(question.text), answer=answer, start=start))
        renamed.append(Block(text, tuple(questions)))
    return renamed


def draw_unused(draw: Callable[[], str], replacements: Mapping[str, str], tries: int = 8) -> str:
    """Draw until a word is unused, at most `tries` times, so that two people do not get the same name."""
    taken = set(replacements.values())
    return next((word for word in (draw() for _ in range(tries)) if word not in taken), draw())


def other_number(digits: str, rng: random.Random) -> str:
    """Draw a number with as many digits. A year stays a year."""
    if len(digits) == 4 and digits[:2] in ("17", "18", "19", "20"):
        return str(rng.randint(1700, 2029))
    return str(rng.randint(1, 9)) + "".join(str(rng.randint(0, 9)) for _ in digits[1:])
