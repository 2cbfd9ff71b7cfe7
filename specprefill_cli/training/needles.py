"""Needles in prose: a sentence with a made-up value at a known depth of a long document, and the question for it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

DEPTHS = 10
PER_DEPTH = 20
THINGS = ("access code", "locker number", "delivery number", "room number", "reference number")
NAMES = ("Alderney", "Brightmoor", "Castlegate", "Dunmore", "Eastwick", "Fernhill", "Glenrock", "Hazelton")  # fmt: skip


def needle_rows(prose: Sequence[str], tokenizer: Tokenizer, tokens: int, seed: int) -> list[dict]:
    """DEPTHS x PER_DEPTH rows for `evaluate`; every document has about `tokens` tokens of prose drawn from passages."""
    generator = random.Random(seed)
    rows = []
    for depth in range(DEPTHS):
        for number in range(PER_DEPTH):
            sentences = filler(prose, tokenizer, tokens, generator)
            thing, name = generator.choice(THINGS), generator.choice(NAMES)
            value = str(generator.randint(10_000, 99_999))
            place = round(len(sentences) * (depth + 0.5) / DEPTHS)
            sentences.insert(place, f"The {thing} for {name} is {value}.")
            rows.append(
                {
                    "id": f"{tokens}-{depth}-{number}",
                    "context": " ".join(sentences),
                    "question": f"What is the {thing} for {name}?",
                    "answers": [value],
                }
            )
    return rows


def filler(prose: Sequence[str], tokenizer: Tokenizer, tokens: int, generator: random.Random) -> list[str]:
    """Sentences of random passages, at most `tokens` tokens together."""
    sentences: list[str] = []
    size = 0
    while True:
        for sentence in generator.choice(prose).replace("\n", " ").split(". "):
            ended = sentence if sentence.endswith(".") else f"{sentence}."
            size += len(tokenizer.encode(f" {ended}", add_special_tokens=False).ids)
            if size > tokens:
                return sentences
            sentences.append(ended)


def write_rows(rows: Sequence[dict], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
