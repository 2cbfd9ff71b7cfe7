"""English for texts in other languages, word by word."""

import numpy as np
import pytest

from specprefill_cli.models.glossary import gloss, has_glossary


@pytest.mark.parametrize(("language", "text", "english"), [
    ("de", "Die Wohnungen", {"apartment", "dwelling"}), ("de", "Kellerschlüssel", {"key"}),
    ("fr", "la bibliothèque", {"library"}), ("es", "la llave", {"key"}), ("it", "la chiave", {"key"}),
    ("pt", "o salário", {"salary", "wage"}), ("nl", "de sleutel", {"key"}), ("pl", "książka", {"book"}),
    ("ru", "библиотека", {"library"}), ("zh", "停车场", {"parking"}), ("ja", "駐車場", {"parking"}),
])  # fmt: skip
def test_a_word_becomes_english_at_its_place(language, text, english):
    glossed = gloss(f"42 {text} Xyzzyx", language)
    words = glossed.text.lower().split()
    assert english & set(words)
    # Numbers and unknown names stay.
    assert words[0] == "42"
    assert words[-1] == "xyzzyx"
    places = glossed.places
    assert len(places) == len(glossed.text)
    assert np.all(np.diff(places) >= 0)
    assert places[glossed.text.index("Xyzzyx")] == len(f"42 {text} ")


@pytest.mark.parametrize(("language", "text"), [("en", "The price"), ("sv", "Det är priset")])
def test_english_and_unknown_languages_stay_as_they_are(language, text):
    assert not has_glossary(language)
    assert gloss(text, language).text == text
    assert gloss(text, language).places.tolist() == list(range(len(text)))
