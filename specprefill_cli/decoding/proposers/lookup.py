"""Proposer `lookup`: an answer often quotes the document, so what followed the same tokens there may follow again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specprefill_cli.decoding.verification import Proposal
from specprefill_cli.models.passes import Steps

# Shortest and longest suffix of the answer that is searched for in the text.
SHORTEST_MATCH = 2
LONGEST_MATCH = 8


class LookupProposer:
    """Searches prompt and answer for the answer's last tokens, and proposes what followed them.

    seen: [n] prompt tokens in the target's cache, in order: it can quote no others
    """

    name = "lookup"
    entry_passes = 0.0
    token_passes = 0.0

    def __init__(self, seen: Tensor) -> None:
        self.seen = seen.numpy()

    def propose(self, answer: Sequence[int], count: int) -> Steps[Proposal]:
        yield from ()
        text = np.concatenate([self.seen, answer])
        return Proposal(self.name, tuple(continuation(text, len(answer), count).tolist()))

    def rollback(self, length: int) -> None:
        """Nothing to do: it sees accepted tokens only."""


def continuation(text: np.ndarray, answer_length: int, count: int) -> np.ndarray:
    """Up to `count` tokens that followed an earlier occurrence of the text's last tokens; none where there is none.

    text: [n], of which the last `answer_length` are the answer: only those are searched for. The longest match wins, and
    of several the latest. A match that runs into the end of the text repeats with its period.
    """
    longest = min(LONGEST_MATCH, answer_length)
    if longest < SHORTEST_MATCH:
        return text[:0]
    places = np.flatnonzero(text[:-1] == text[-1])
    for back in range(1, longest):
        matching = places[places >= back]
        matching = matching[text[matching - back] == text[-1 - back]]
        if len(matching) == 0:
            if back < SHORTEST_MATCH:
                return text[:0]
            break
        places = matching
    start = places[-1] + 1
    return np.resize(text[start : start + count], count)
