"""The lookup proposer continues an earlier occurrence of the answer's last tokens."""

import numpy as np
import pytest
import torch

from specprefill_cli.decoding.proposers import LONGEST_MATCH, LookupProposer, continuation
from tests.helpers.scripted import returned


def proposed(prompt, answer, count=4):
    return list(returned(LookupProposer(torch.tensor(prompt)).propose(answer, count)).tokens)


def test_proposes_what_followed_the_same_tokens():
    assert proposed([1, 2, 3, 4, 5, 6, 7, 8], [2, 3]) == [4, 5, 6, 7]


def test_a_longer_match_wins_over_a_later_match():
    prompt = [1, 2, 3, 10, 11, 12, 9, 2, 3, 20, 21, 22]
    assert proposed(prompt, [1, 2, 3], 2) == [10, 11]
    assert proposed(prompt, [8, 2, 3], 2) == [20, 21]


def test_the_latest_match_wins_among_matches_of_maximum_length():
    repeated = list(range(1, LONGEST_MATCH + 2))
    prompt = [50, *repeated, 60, 51, *repeated, 61]
    assert proposed(prompt, [50, *repeated], 1) == [61]


@pytest.mark.parametrize("answer", [[3], [3, 9], [9, 9], [5, 4]])
def test_needs_a_match_of_two_tokens(answer):
    assert proposed([1, 2, 3, 4, 5], answer) == []


def test_searches_the_answer_and_continues_a_repetition():
    assert proposed([30, 31, 32], [1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert proposed([30], [7, 7, 7], 3) == [7, 7, 7]


def test_search_string_excludes_the_prompt():
    """The search string holds only tokens of the answer, never the end of the prompt."""
    assert proposed([1, 2, 3, 4, 1, 2], [3]) == []


def test_a_long_answer_still_quotes_the_prompt():
    proposer = LookupProposer(torch.arange(100))
    answer = [*range(600, 1_400), 10, 11]
    assert returned(proposer.propose(answer, 2)).tokens == (12, 13)
    assert returned(proposer.propose([*answer, 605, 606], 2)).tokens == (607, 608)


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
