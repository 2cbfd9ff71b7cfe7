"""Pages and their character ranges, paragraphs of PDF lines, and sentences."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.documents.cleaning import clean_text, join_lines
from specprefill_cli.documents.document import Document, join_pages
from specprefill_cli.documents.html import visible_text
from specprefill_cli.documents.sentences import LONGEST_SENTENCE, sentence_ranges

page_texts = st.lists(st.text("ab\n", max_size=5), min_size=1, max_size=8)


@given(page_texts)
def test_page_ranges_cover_the_text_of_each_page_exactly(texts: list[str]) -> None:
    text, pages = join_pages(texts)
    assert [text[page.start : page.end] for page in pages] == texts
    assert [page.number for page in pages] == list(range(1, len(texts) + 1))
    assert text == "\n\n".join(filter(None, texts))


@given(page_texts, st.data())
def test_pages_between_equals_a_search_of_all_pages(texts: list[str], data: st.DataObject) -> None:
    text, pages = join_pages(texts)
    document = Document("d", text, pages)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    touched = tuple(page.number for page in pages if set(range(page.start, page.end)) & set(range(start, end)))
    assert document.pages_between(start, end) == touched


WRAPPED = "This line of wrapped prose goes on and on until the\nPort of Skerrin ends it."


def sentences(text):
    return [text[start:end] for start, end in sentence_ranges(text)]


@pytest.mark.parametrize(("text", "expected"), [
    ("It rained. We left! ¿Why? ¡Oh!", ["It rained.", "We left!", "¿Why?", "¡Oh!"]),
    ("Mr. J. Smith met Dr. Wu in the U.S. Army.", ["Mr. J. Smith met Dr. Wu in the U.S. Army."]),
    ("It cost 3.50 euros, see Fig. 3 and e.g. Table 2.", ["It cost 3.50 euros, see Fig. 3 and e.g. Table 2."]),
    ('"Was it late?" She said no.', ['"Was it late?"', "She said no."]),
    ("Notice period\n\nIt is a month.", ["Notice period", "It is a month."]),
    ("1. Open the lid\n2. Close it", ["1. Open the lid", "2. Close it"]),
    ("Fee: 10\nTerm: 3 years", ["Fee: 10", "Term: 3 years"]), ("彼は行った。そして帰った。", ["彼は行った。", "そして帰った。"]),
    ("Bzgl. Miete ggf. Frau Kern fragen. Danach zahlen.", ["Bzgl. Miete ggf. Frau Kern fragen.", "Danach zahlen."]),
    ("Открыто в 9 ч. утра. Вход свободный.", ["Открыто в 9 ч. утра.", "Вход свободный."]), (" \n\n ", []),
    (
        "D416 | No. 3. Shade. | All parts. Stuff it. | 2\nE501 | Sun. Dry. | 3\nIt rained. We left.",
        ["D416 | No. 3. Shade. | All parts. Stuff it. | 2", "E501 | Sun. Dry. | 3", "It rained.", "We left."],
    ),
    (f"{WRAPPED} Then another begins.", [WRAPPED, "Then another begins."]),
])  # fmt: skip
def test_text_is_cut_into_sentences(text, expected):
    assert sentences(text) == expected


def test_a_very_long_sentence_is_cut_between_words():
    pieces = sentences("word " * 300)
    assert max(map(len, pieces)) <= LONGEST_SENTENCE
    assert all(set(piece.split()) == {"word"} for piece in pieces)
    assert sum(len(piece.split()) for piece in pieces) == 300


# A run for every class of characters, and those that end or nearly end a sentence again and again.
RUNS = [*"Aa7_é漢。 \t\n\r\xa0.!?…\"'(|-<&[{`#*\\\u0301\xad\u200dﬁא🙂"]
RUNS += 'A. /Mr. /1. /a./.\n/".\n/ "/. \'/a\n/ | /a-\n/\xad \n/\n \n/\n1. /<a /<!--/<![CDATA[/a b /-\n'.split("/")


@pytest.mark.parametrize("function", [sentences, clean_text, join_lines, visible_text])
@pytest.mark.parametrize("run", RUNS)
def test_time_is_proportional_to_the_length(function, run):
    def seconds(characters):
        text = (run * characters)[:characters] + " The code is 7."
        started = time.process_time()
        function(text)
        return time.process_time() - started

    # A quadratic method takes 16 times as long.
    assert min(seconds(200_000) for _ in range(2)) < 8 * min(seconds(50_000) for _ in range(2)) + 0.01


ROW = "a: 1 | b: 2" * 20
FULL = "the quick brown fox jumps over the lazy dog and goes on"


@pytest.mark.parametrize(("lines", "expected"), [
    pytest.param([FULL, FULL, "the end."], f"{FULL} {FULL} the end.", id="paragraph"),
    pytest.param([FULL + " docu-", "ment and " + FULL], f"{FULL} document and {FULL}", id="hyphen dropped"),
    pytest.param([FULL + " Anglo-", "Saxon " + FULL], f"{FULL} Anglo-Saxon {FULL}", id="hyphen kept"),
    pytest.param([FULL + " COVID-", "19 " + FULL], f"{FULL} COVID-19 {FULL}", id="number"),
    pytest.param([FULL + " -", "and " + FULL], f"{FULL} - and {FULL}", id="dash"),
    pytest.param([FULL + " text-", "- item"], f"{FULL} text-\n- item", id="item"),
    pytest.param(["Introduction", FULL, FULL], f"Introduction\n{FULL} {FULL}", id="heading"),
    pytest.param([FULL + ".", "Methods", FULL], f"{FULL}.\nMethods\n{FULL}", id="heading after full line"),
    pytest.param([FULL, "ends here.", FULL], f"{FULL} ends here.\n{FULL}", id="short last line"),
    pytest.param([FULL, "- one", "2. two", "(a) three", "3.1 four"], f"{FULL}\n- one\n2. two\n(a) three\n3.1 four"),
    pytest.param([FULL, "", FULL], f"{FULL}\n\n{FULL}", id="blank line"),
    pytest.param([*[ROW] * 3, FULL, FULL], f"{ROW}\n{ROW}\n{ROW}\n{FULL} {FULL}", id="beside long rows"),
    pytest.param([FULL, "mass 3.5 12 4", FULL], f"{FULL}\nmass 3.5 12 4\n{FULL}", id="table row"),
    pytest.param(["red 1", "blue", "green"], "red 1\nblue\ngreen", id="narrow page"),
    pytest.param(["漢" * 30, "字" * 30], "漢" * 30 + "字" * 30, id="no space between Chinese characters"),
    pytest.param([""], "", id="empty"),
])  # fmt: skip
def test_join_lines(lines: list[str], expected: str) -> None:
    assert join_lines("\n".join(lines)) == expected


@given(st.lists(st.text(st.sampled_from("abC1 .-漢"), max_size=60), max_size=8))
def test_joining_changes_only_white_space_and_dividing_hyphens(lines: list[str]) -> None:
    text = "\n".join(lines)
    joined = join_lines(text)
    assert [c for c in joined if c not in " \n-"] == [c for c in text if c not in " \n-"]
    assert text.count("-") - joined.count("-") <= text.count("-\n") + text.count("- ")
