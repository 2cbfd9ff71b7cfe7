"""Sampling distributions, seeds, streaming of complete characters, and stop texts, no part of which is ever shown."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from specprefill_cli.decoding.sampling import Detokenizer, Sampler, StopFilter

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])
LETTERS = st.text("ab", max_size=12)


def test_temperature_scales_the_softmax_and_zero_is_greedy():
    torch.testing.assert_close(Sampler(0.5).probabilities(LOGITS), (LOGITS * 2).softmax(-1))
    assert [Sampler(0.0, seed=seed)(LOGITS) for seed in range(20)] == [0] * 20
    assert Sampler(1e-40).probabilities(LOGITS).tolist() == [1, 0, 0, 0]


def test_top_k_keeps_k_tokens_and_renormalises():
    probabilities = Sampler(1.0, top_k=2).probabilities(LOGITS)
    assert probabilities[2:].tolist() == [0, 0]
    torch.testing.assert_close(probabilities[:2], LOGITS[:2].softmax(-1))


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.65, 2), (0.9, 3), (0.999, 4), (1.0, 4)])
def test_top_p_keeps_the_smallest_sufficient_set(top_p, kept):
    # The probabilities are 0.644, 0.237, 0.087 and 0.032.
    probabilities = Sampler(1.0, top_p=top_p).probabilities(LOGITS)
    assert int((probabilities > 0).sum()) == kept
    assert probabilities.sum().item() == pytest.approx(1)


def test_equal_seeds_repeat_and_different_seeds_differ():
    logits = torch.zeros(50)
    samplers = [Sampler(1.0, seed=seed) for seed in (3, 3, 4)]
    first, again, different = ([sampler(logits) for _ in range(20)] for sampler in samplers)
    assert first == again != different


@given(st.text(max_size=60))
def test_streamed_pieces_join_to_the_whole_text(tokenizer, text):
    stream = Detokenizer(tokenizer)
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.finish() == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_finish_replaces_an_incomplete_character(tokenizer):
    ids = tokenizer("a\N{OLD PERSIAN SIGN A}", add_special_tokens=False)["input_ids"]
    stream = Detokenizer(tokenizer)
    assert "".join(stream.push(token) for token in ids[:-1]) == "a"
    assert stream.finish() == "\ufffd"


def test_invalid_bytes_after_streamed_text_do_not_break_the_stream():
    vocabulary = {"a": 0, "<0xC2>": 1, "<0xA0>": 2, "<0xE2>": 3, "<0x82>": 4, "<0xAC>": 5, "<unk>": 6}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    stream = Detokenizer(SimpleNamespace(backend_tokenizer=backend))
    # A no-break space followed by a three-byte euro sign is decoded as a single run of bytes.
    pieces = [stream.push(token) for token in (0, 1, 2, 3, 4, 5, 0)]
    assert "".join(pieces) + stream.finish() == "a\u00a0€a"
    for tokens, ending in (((3,), "\ufffd"), ((3, 0), "\ufffda"), ((3, 0, 3, 4, 5), "\ufffda€")):
        stream = Detokenizer(SimpleNamespace(backend_tokenizer=backend))
        pieces = [stream.push(token) for token in (0, 1, 2, *tokens)]
        assert "".join(pieces) + stream.finish() == "a\u00a0" + ending


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_pieces_are_cut_where_their_text_is_once_a_stop_text_is_complete(pieces, stop_texts):
    filter_, text, shown = StopFilter(stop_texts), "", ""
    for piece in pieces:
        text += piece
        shown += filter_.push(piece)
        assert not any(stop in shown for stop in stop_texts)
        if filter_.stopped:
            break
    places = [text.find(stop) for stop in stop_texts if stop in text]
    assert filter_.stopped == bool(places)
    assert shown + filter_.held == text[: min(places, default=len(text))]


def test_text_that_cannot_begin_a_stop_text_is_shown_at_once():
    filter_ = StopFilter(["###"])
    assert filter_.push("42 pence #") == "42 pence "
    assert filter_.push("1") == "#1"
