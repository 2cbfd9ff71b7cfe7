"""The lookup proposer continues an earlier occurrence of the answer's last tokens."""

import numpy as np
import torch

from specprefill_cli.decoding.proposers import LONGEST_MATCH, LookupProposer, continuation
from tests.helpers.scripted import result_of


def test_search_string_excludes_the_prompt():
    """The search string holds only tokens of the answer, never the end of the prompt."""
    proposer = LookupProposer(torch.tensor([1, 2, 3, 4, 1, 2]))
    assert list(result_of(proposer.propose([3], 4)).tokens) == []


def test_a_long_answer_still_quotes_the_prompt():
    proposer = LookupProposer(torch.arange(100))
    answer = [*range(600, 1_400), 10, 11]
    assert result_of(proposer.propose(answer, 2)).tokens == (12, 13)
    assert result_of(proposer.propose([*answer, 605, 606], 2)).tokens == (607, 608)


def test_continuation_matches_a_brute_force_search():
    generator = np.random.default_rng(0)

    def brute_force(text, longest, count):
        for length in range(longest, 1, -1):
            for end in range(len(text) - 1, length - 1, -1):
                if text[end - length : end] == text[-length:]:
                    period = text[end:]
                    return [period[place % len(period)] for place in range(count)]
        return []

    for _ in range(300):
        text = generator.integers(0, 4, generator.integers(3, 40)).tolist()
        length = int(generator.integers(1, len(text)))
        expected = brute_force(text, min(length, LONGEST_MATCH), 5)
        assert continuation(np.array(text), length, 5).tolist() == expected
