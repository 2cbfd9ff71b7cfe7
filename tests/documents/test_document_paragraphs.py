"""PDF lines -> paragraphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.documents.paragraphs import join_lines

FULL = "the quick brown fox jumps over the lazy dog and goes on"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([FULL, FULL, "the end."], f"{FULL} {FULL} the end.", id="paragraph"),
        pytest.param([FULL + " docu-", "ment and " + FULL], f"{FULL} document and {FULL}", id="hyphen dropped"),
        pytest.param([FULL + " Anglo-", "Saxon " + FULL], f"{FULL} Anglo-Saxon {FULL}", id="hyphen kept"),
        pytest.param([FULL + " state-of-the-", "art " + FULL], f"{FULL} state-of-the-art {FULL}", id="compound word"),
        pytest.param([FULL + " COVID-", "19 " + FULL], f"{FULL} COVID-19 {FULL}", id="number"),
        pytest.param([FULL + " -", "and " + FULL], f"{FULL} - and {FULL}", id="dash"),
        pytest.param([FULL + " text-", "- item"], f"{FULL} text-\n- item", id="item"),
        pytest.param(["Introduction", FULL, FULL], f"Introduction\n{FULL} {FULL}", id="heading"),
        pytest.param([FULL + ".", "Methods", FULL], f"{FULL}.\nMethods\n{FULL}", id="heading after full line"),
        pytest.param([FULL, "ends here.", FULL], f"{FULL} ends here.\n{FULL}", id="short last line"),
        pytest.param([FULL, "- one", "2. two", "(a) three", "3.1 four"], f"{FULL}\n- one\n2. two\n(a) three\n3.1 four"),
        pytest.param([FULL, "", FULL], f"{FULL}\n\n{FULL}", id="blank line"),
        pytest.param([FULL, "mass 3.5 12 4", FULL], f"{FULL}\nmass 3.5 12 4\n{FULL}", id="table row"),
        pytest.param(["red 1", "blue", "green"], "red 1\nblue\ngreen", id="narrow page"),
        pytest.param(["漢" * 30, "字" * 30], "漢" * 30 + "字" * 30, id="no space between Chinese characters"),
        pytest.param([""], "", id="empty"),
    ],
)
def test_join_lines(lines: list[str], expected: str) -> None:
    assert join_lines("\n".join(lines)) == expected


@given(st.lists(st.text(st.sampled_from("abC1 .-漢"), max_size=60), max_size=8))
def test_joining_changes_only_white_space_and_dividing_hyphens(lines: list[str]) -> None:
    text = "\n".join(lines)
    joined = join_lines(text)
    assert [c for c in joined if c not in " \n-"] == [c for c in text if c not in " \n-"]
    assert text.count("-") - joined.count("-") <= text.count("-\n") + text.count("- ")
