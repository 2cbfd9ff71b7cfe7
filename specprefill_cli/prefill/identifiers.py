"""Rare identifiers of a question: codes, numbers and names of code that the documents hold in a few places only."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np

from specprefill_cli.documents.sentences import sentences_of

# Parts of an identifier are joined by one of these: `AB-1234/7`, `10.0.0.7`, `8,450`.
TOKEN = re.compile(r"\w+(?:[-./:,@#]\w+)*")
# A number and what it counts or the month that it is a day of.
COUNTED = re.compile(r"\b\d+ [^\W\d_]{3,}")
SHORTEST_NUMBER = 3
# An identifier in more places says little about where the answer is.
MOST_PLACES = 8


def is_identifier(token: str) -> bool:
    """Whether a token is a code, a long number, or a name as in code: with `_` or capitals inside."""
    if any(character.isdigit() for character in token):
        return len(token) >= SHORTEST_NUMBER or any(map(str.isalpha, token))
    return "_" in token or token[1:] != token[1:].lower()


def rare_places(question: str, text: str) -> list[int]:
    """The characters of a text at which rare identifiers of a question begin, in its spelling or, without one, in any case."""
    places: list[int] = []
    for token in sorted({*filter(is_identifier, TOKEN.findall(question)), *COUNTED.findall(question)}):
        pattern = rf"(?<!\w)(?<!\d[.,:]){re.escape(token)}(?!\w|[.,:]\d)"
        for flags in (0, re.IGNORECASE):
            found = [match.start() for match in islice(re.finditer(pattern, text, flags), MOST_PLACES + 1)]
            if found:
                break
        places += found if len(found) <= MOST_PLACES else []
    return sorted(places)


def hold_rare_identifier(question: str, text: str, starts: np.ndarray) -> np.ndarray:
    """Whether each passage [n] of a text, from characters `starts` [n] on, has part of a sentence or row with an identifier.

    The identifier is a rare one of the question.
    """
    holds = np.zeros(len(starts), dtype=bool)
    begins, ends = sentences_of(text).T
    for place in rare_places(question, text):
        sentence = max(0, int(np.searchsorted(begins, place, side="right")) - 1)
        first, last = np.searchsorted(starts, (begins[sentence], ends[sentence] - 1), side="right") - 1
        holds[max(0, first) : last + 1] = True
    return holds
