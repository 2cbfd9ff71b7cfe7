"""The lookup proposer: what stood behind the answer's last tokens before."""

import numpy as np
import pytest
import torch

from specprefill_cli.decoding.proposers.lookup import LONGEST_MATCH, LookupProposer, continuation


def found(prompt, answer, count=4):
    return list(LookupProposer(torch.tensor(prompt)).propose(answer, count).tokens)


def test_what_followed_the_same_tokens_is_proposed():
    assert found([1, 2, 3, 4, 5, 6, 7, 8], [2, 3]) == [4, 5, 6, 7]


def test_the_longest_match_wins_over_a_later_one():
    prompt = [1, 2, 3, 10, 11, 12, 9, 2, 3, 20, 21, 22]
    assert found(prompt, [1, 2, 3], 2) == [10, 11]
    assert found(prompt, [8, 2, 3], 2) == [20, 21]


def test_a_match_longer_than_the_longest_compared_is_a_tie_and_the_latest_wins():
    run = list(range(1, LONGEST_MATCH + 2))
    prompt = [50, *run, 60, 51, *run, 61]
    assert found(prompt, [50, *run], 1) == [61]


@pytest.mark.parametrize("answer", [[3], [3, 9], [9, 9], [5, 4]])
def test_one_token_alone_or_none_is_no_match(answer):
    assert found([1, 2, 3, 4, 5], answer) == []


def test_the_answer_itself_is_searched_and_a_loop_goes_on():
    assert found([30, 31, 32], [1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert found([30], [7, 7, 7], 3) == [7, 7, 7]


def test_the_prompt_is_not_searched_for_its_own_end():
    """Only the answer's tokens are looked for, not the words of the prompt before it."""
    assert found([1, 2, 3, 4, 1, 2], [3]) == []


def test_a_long_answer_grows_with_the_buffer():
    proposer = LookupProposer(torch.arange(100))
    answer = []
    for token in [*range(600, 1_400), 10, 11]:
        answer.append(token)
        proposer.propose(answer, 2)
    assert proposer.propose(answer, 2).tokens == (12, 13)
    assert proposer.extended(answer).tolist() == [*range(100), *answer]


def test_a_search_equals_the_slow_one():
    generator = np.random.default_rng(0)

    def slow(text, longest, count):
        for length in range(longest, 1, -1):
            for end in range(len(text) - 1, length - 1, -1):
                if text[end - length : end] == text[-length:]:
                    period = text[end:]
                    return [period[place % len(period)] for place in range(count)]
        return []

    for _ in range(300):
        text = generator.integers(0, 4, generator.integers(3, 40)).tolist()
        length = int(generator.integers(1, len(text)))
        expected = slow(text, min(length, LONGEST_MATCH), 5)
        assert continuation(np.array(text), length, 5).tolist() == expected
