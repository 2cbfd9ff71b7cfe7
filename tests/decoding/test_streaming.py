"""Stop texts: an answer is cut before the first, and no part of one is ever shown."""

from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.decoding.streaming import StopFilter

LETTERS = st.text("ab", max_size=12)


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_pieces_are_cut_where_the_whole_text_is(pieces, stop_texts):
    filter_, shown = StopFilter(stop_texts), ""
    for piece in pieces:
        shown += filter_.push(piece)
        assert not any(stop in shown for stop in stop_texts)
        if filter_.stopped:
            break
    text = "".join(pieces)
    places = [text.find(stop) for stop in stop_texts if stop in text]
    assert filter_.stopped == bool(places)
    if not places:
        assert shown + filter_.held == text
    else:
        assert text.startswith(shown)
        assert len(shown) <= min(places)


def test_text_that_cannot_begin_a_stop_text_is_shown_at_once():
    filter_ = StopFilter(["###"])
    assert filter_.push("42 pence #") == "42 pence "
    assert filter_.push("1") == "#1"
