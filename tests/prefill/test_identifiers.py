"""Rare identifiers of a question come first, whatever they mean."""

import numpy as np
import pytest

from specprefill_cli.prefill.bm25 import MOST_PLACES, hold_rare_identifier, rare_places

TEXT = "Berth B077 costs 8,450 a year; berth B078 costs more. def handler_41(x): see RFC-9110/2, of 2024 and 12. Open 14 June."


@pytest.mark.parametrize(
    ("question", "identifiers"),
    [
        ("What does B077 cost?", ["B077"]),
        ("what does b077 cost?", ["B077"]),
        ("Which berth costs 8,450?", ["8,450"]),
        ("What does handler_41 see in RFC-9110/2?", ["handler_41", "RFC-9110/2"]),
        ("Who paid 8,450 a year? And 450 a year?", ["8,450"]),
        ("What opens on 14 June?", ["14 June"]),
        ("Which berth has 12 boats, B07 or 450?", []),
        ("What does a berth cost?", []),
    ],
)
def test_identifiers_are_found_whole(question: str, identifiers: list[str]) -> None:
    assert rare_places(question, TEXT) == sorted(map(TEXT.index, identifiers))
    # An identifier in many places is not rare.
    assert len(rare_places("What is B7?", "B7 is here. " * MOST_PLACES)) == MOST_PLACES
    assert rare_places("What is B7?", "B7 is here. " * (MOST_PLACES + 1)) == []


def test_the_whole_row_of_an_identifier_is_held() -> None:
    rows = "Berth: B076 | Fee: 1\nBerth: B077 | Fee: 2\nBerth: B078 | Fee: 3"
    starts = np.array([0, 10, rows.index("B077") + 1, rows.index("2"), rows.index("B078")])
    assert hold_rare_identifier("What is the fee of B077?", rows, starts).tolist() == [False, True, True, True, False]
    assert not hold_rare_identifier("What is the fee?", rows, starts).any()
