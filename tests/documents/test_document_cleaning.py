"""Cleaning of characters repairs text and loses no letter."""

import unicodedata
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specprefill_cli.documents.cleaning import clean_characters, clean_text, replace_surrogates

ODD_CHARACTERS = (
    "ab \t\n\r-\u00ad\u200b\u200c\u2060\ufeff\x00\x0c\u2028\ufb01\ufb03\ufb05\ud83d\ude00\u0301\u0323é\u0344"
)
texts = st.text(st.one_of(st.sampled_from(ODD_CHARACTERS), st.characters()), max_size=60)


def letters(text: str) -> Counter[str]:
    return Counter(c for c in unicodedata.normalize("NFKD", text) if c.isalnum())


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("a\r\nb\rc\x0cd\u2028e", "a\nb\nc\nd\ne"),
        ("o\ufb03ce \ufb01le \ufb02ow \ufb00 \ufb04 la\ufb06 \ufb05", "office file flow ff ffl last st"),
        ("docu\u00adment docu\u00ad\n  ment", "document document"),
        ("docu\u00ad\n\nNext\u00ad\n- item", "docu\n\nNext\n- item"),
        ("a\x00b\u200bc\u2060d\ufeffe", "abcde"),
        ("e\u0301", "\u00e9"),
        ("\ud83d\ude00 \ud800x", "\U0001f600 \ufffdx"),
        ("\u0646\u200c\u0627", "\u0646\u200c\u0627"),  # the non-joiner is Persian spelling
        ("a\n\n\nb\n \n\nc", "a\n\n\nb\n \n\nc"),
        ("a\n\n \n\t\n\n\nb", "a\n\n\nb"),
    ],
)
def test_characters_are_cleaned_and_runs_of_blank_lines_cut_to_two(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


@given(texts)
@example("\u00ad\u200b\nx")
@example("\ud83d\u200b\ude00")
@example("\r\x00\n")
def test_cleaning_is_idempotent_and_keeps_every_letter(raw: str) -> None:
    clean = clean_text(raw)
    assert clean_text(clean) == clean
    assert letters(clean) == letters(replace_surrogates(raw))
    clean.encode("utf-8")  # no surrogate is left
    assert not set(clean) & set("\r\x00\u00ad\u200b\u2060\ufeff\ufb01")


@given(st.text(st.sampled_from("ae \n\u0301\u0323\u0344\u0e33\u1100\u1161"), max_size=80))
def test_normalising_in_pieces_equals_normalising_at_once(text: str) -> None:
    long_line = text + " x" * 600
    assert clean_characters(text) == unicodedata.normalize("NFC", text)
    assert clean_characters(long_line) == unicodedata.normalize("NFC", long_line)
