"""Needles in prose: a sentence with an invented value at a known depth of a long document, and the question for it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tokenizers import Tokenizer

DEPTHS = 10
PER_DEPTH = 20
THINGS = ("access code", "locker number", "delivery number", "room number", "reference number")
NAMES = ("Alderney", "Brightmoor", "Castlegate", "Dunmore", "Eastwick", "Fernhill", "Glenrock", "Hazelton")


def needle_rows(prose: Sequence[str], tokenizer: Tokenizer, tokens: int, seed: int) -> list[dict]:
    """DEPTHS x PER_DEPTH rows for `evaluate`, each with a document of about `tokens` tokens drawn from the passages."""
    generator = random.Random(seed)
    rows = []
    for depth in range(DEPTHS):
        for number in range(PER_DEPTH):
            sentences = random_sentences(prose, tokenizer, tokens, generator)
            thing, name = generator.choice(THINGS), generator.choice(NAMES)
            value = str(generator.randint(10_000, 99_999))
            sentences.insert(round(len(sentences) * (depth + 0.5) / DEPTHS), f"The {thing} for {name} is {value}.")
            row = {"id": f"{tokens}-{depth}-{number}", "context": " ".join(sentences)}
            rows.append(row | {"question": f"What is the {thing} for {name}?", "answers": [value]})
    return rows


def random_sentences(prose: Sequence[str], tokenizer: Tokenizer, tokens: int, generator: random.Random) -> list[str]:
    """Sentences of random passages, at most `tokens` tokens together."""
    sentences: list[str] = []
    size = 0
    while True:
        for sentence in generator.choice(prose).replace("\n", " ").split(". "):
            sentence = sentence if sentence.endswith(".") else f"{sentence}."
            size += len(tokenizer.encode(f" {sentence}", add_special_tokens=False).ids)
            if size > tokens:
                return sentences
            sentences.append(sentence)
