"""The language of texts and questions, and the form of words by language."""

import pytest

from specprefill_cli.documents.language import WordForms, language_of, says_not_found


@pytest.mark.parametrize(
    ("text", "otherwise", "language"),
    [
        ("Wie hoch ist die Miete?", "de", "de"),
        ("Quel est le montant de la caution ?", "en", "fr"),
        ("¿Cuánto dura el programa?", "en", "es"),
        ("Hoe lang is de wachtlijst?", "en", "nl"),
        ("Сколько стоит билет?", "en", "ru"),
        ("押金是多少?", "en", "zh"),
        ("管理費はいくらですか。", "en", "ja"),
        ("How much is the deposit?", "de", "en"),
        ("How much is the deposit?", "ja", "en"),
        # Nothing tells: the document's language, and English where that has another script.
        ("Kündigungsfrist?", "de", "de"),
        ("Fenwick 4471", "ru", "en"),
        ("", "en", "en"),
        ("lamp | yes | no\n" * 50, "en", "en"),
        ("lamp | 23.5 | AB-12\n" * 99, "en", "en"),
        ("int main(void) { return 0; }", "en", "en"),
        ("Fee of the Rue de la Paix clinic?", "en", "en"),
        # Words that are frequent nowhere: n-grams tell.
        (
            "A bérlő köteles megfizetni a bérleti díjat. A felmondási idő három hónap, a kerítés javítása közös. " * 2,
            "en",
            "hu",
        ),
        (
            "Najmoprimac je dužan platiti najamninu do desetog dana u mjesecu. Otkazni rok iznosi tri mjeseca. " * 2,
            "en",
            "hr",
        ),
    ],
)
def test_language_of_a_text(text, otherwise, language):
    assert language_of(text, otherwise) == language


@pytest.mark.parametrize(("language", "question", "word"), [
    ("de", "In welchen Wohnungen?", "wohnung"), ("de", "Welche Größe?", "gross"),
    ("fr", "Les fenêtres ?", "fenetr"), ("ru", "комнатах?", "комнат"), ("sw", "vitabu?", "vitab"),
    ("zh", "押金?", "押金"),
])  # fmt: skip
def test_words_are_compared_by_stems_without_accents_or_as_pairs_of_characters(language, question, word):
    assert word in WordForms(language).question_words(question)


@pytest.mark.parametrize(
    ("answer", "says"),
    [("Not found.", True), ("Nicht gefunden", True), ("見つかりません。", True), ("The key was not found", False)],
)
def test_says_not_found_in_several_languages(answer, says):
    assert says_not_found(answer) is says


def test_words_without_a_subject_do_not_count_in_either_language():
    assert WordForms("de").question_words("Was ist der Preis?") == ["preis"]
    assert WordForms("de").question_words("What is the Preis?") == ["preis"]


@pytest.mark.parametrize(("language", "related"), [("de", ["kaltmiet", "mietvertrag"]), ("en", [])])
def test_compounds_of_the_vocabulary_are_related_where_a_language_writes_them_as_one_word(language, related):
    vocabulary = ["kaltmiet", "mietvertrag", "miet", "haus", "mie"]
    assert WordForms(language).related("miet", vocabulary) == related
