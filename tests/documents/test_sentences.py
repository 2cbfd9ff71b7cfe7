import pytest

from specprefill_cli.documents.sentences import LONGEST_SENTENCE, sentence_ranges


def sentences(text):
    return [text[start:end] for start, end in sentence_ranges(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rained. We left! Why?", ["It rained.", "We left!", "Why?"]),
        ("Mr. J. Smith met Dr. Wu in the U.S. Army.", ["Mr. J. Smith met Dr. Wu in the U.S. Army."]),
        ("It cost 3.50 euros, see Fig. 3 and e.g. Table 2.", ["It cost 3.50 euros, see Fig. 3 and e.g. Table 2."]),
        ('"Was it late?" She said no.', ['"Was it late?"', "She said no."]),
        ("Notice period\n\nIt is a month.", ["Notice period", "It is a month."]),
        ("1. Open the lid\n2. Close it", ["1. Open the lid", "2. Close it"]),
        ("Fee: 10\nTerm: 3 years", ["Fee: 10", "Term: 3 years"]),
        ("彼は行った。そして帰った。", ["彼は行った。", "そして帰った。"]),
        (" \n\n ", []),
        (
            "D416 | No. 3. Shade. | All parts. Stuff it. | 2\nE501 | Sun. Dry. | 3\nIt rained. We left.",
            ["D416 | No. 3. Shade. | All parts. Stuff it. | 2", "E501 | Sun. Dry. | 3", "It rained.", "We left."],
        ),
    ],
)
def test_text_is_cut_into_sentences(text, expected):
    assert sentences(text) == expected


def test_a_wrapped_line_does_not_end_a_sentence():
    text = "This line of wrapped prose goes on and on until the\nPort of Skerrin ends it. Then another begins."
    assert sentences(text) == [text[: text.index(" Then")], "Then another begins."]


def test_a_very_long_sentence_is_cut_between_words():
    pieces = sentences("word " * 300)
    assert max(map(len, pieces)) <= LONGEST_SENTENCE
    assert all(set(piece.split()) == {"word"} for piece in pieces)
    assert sum(len(piece.split()) for piece in pieces) == 300
