"""Importance scores against a naive implementation with full attention matrices, and transfer between tokenizers."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.documents.language import WordForms
from specprefill_cli.draft_kv.checkpoints import SlotKv
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.study.controls import cache_of
from specprefill_cli.models.running.adapter import window_layers
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.bm25 import bm25, word_index, word_scores
from specprefill_cli.prefill.importance import attention_importance, transfer
from specprefill_cli.prefill.registry import SCORERS
from tests.helpers.architectures import ARCHITECTURES, WINDOW
from tests.helpers.sessions import request_for


@torch.no_grad()
def naive_importance(request, query_indices, decoded):
    """Score with one eager pass over prompt and decoded tokens, full attention matrices and the paper's formula.

    Each query's attention over the prompt, BOS included, is normalised to 1 and pooled before the document is sliced.
    """
    model, prompt = request.pair.draft.model, request.draft_prompt
    model.set_attn_implementation("eager")
    tokens = prompt.tokens
    for _ in range(decoded):
        logits = model(tokens[None], use_cache=False).logits[0, -1]
        if int(logits.argmax()) in request.pair.draft.stop_tokens:
            break
        tokens = torch.cat([tokens, logits.argmax()[None]])
    attentions = model(tokens[None], use_cache=False, output_attentions=True).attentions
    rows = [*query_indices, *range(prompt.length, len(tokens))]
    start, end = prompt.document
    pooled = []
    for layer, window in enumerate(window_layers(model.config)):
        if window is not None and window < prompt.length:
            continue
        to_prompt = attentions[layer][0][:, rows, : prompt.length]
        to_prompt = to_prompt / to_prompt.sum(-1, keepdim=True)
        pooled.append(F.avg_pool1d(to_prompt, 13, stride=1, padding=6)[..., start:end])
    return torch.cat(pooled).amax(0).mean(0)


@pytest.mark.parametrize("random_pair", sorted(set(ARCHITECTURES) - {"mistral"}), indirect=True)
@pytest.mark.parametrize("chunk", [10_000, 64])
@pytest.mark.parametrize(("scorer", "settings", "decoded"), [("paper", {}, 7), ("question", {"look_ahead": 3}, 3)])
def test_scores_equal_the_naive_implementation(random_session, chunk, scorer, settings, decoded):
    request = request_for(random_session, prefill_chunk=chunk, **settings)
    ours = SCORERS[scorer].score(request).importance
    queries = range(*request.prompt.question) if scorer == "question" else [request.prompt.length - 1]
    expected = naive_importance(request, queries, decoded)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_heads_that_attend_mostly_to_bos_count_little():
    """Head 0 attends almost only to BOS and otherwise to token 20; head 1 attends to BOS and tokens 60 to 72 equally."""
    tokens, document = 100, (10, 90)
    logits = torch.full((2, tokens), -30.0)
    logits[0, 0], logits[0, 20] = 10.0, 3.0
    logits[1, 0] = logits[1, 60:73] = 0.0
    # One-dimensional keys equal to the logits, with a query of 1 in each of the two key-value heads.
    keys = logits[None, :, :, None]
    state = cache_of(SlotKv(torch.arange(tokens), ((keys[0], keys[0]),)))
    capture = QueryCapture(torch.tensor([tokens - 1]))
    capture.queries[0], capture.scaling[0] = [torch.ones(2, 1, 1)], 1.0
    importance = attention_importance(state, capture, tokens, document, [0])
    assert 60 <= 10 + int(importance.argmax()) < 73
    assert importance[20 - 10] < 0.01 * importance.max()


@pytest.mark.parametrize("random_pair", ["mistral"], indirect=True)
def test_rejects_a_draft_with_only_short_window_layers(random_session):
    request = request_for(random_session)
    assert request.prompt.length > WINDOW
    with pytest.raises(SpecprefillError, match=r"window shorter than this prompt.*--scorer lexical"):
        SCORERS["question"].score(request)


@pytest.mark.parametrize("name", ["question", "heads"])
def test_rejects_scores_that_are_not_finite(random_session, name):
    with torch.no_grad():
        random_session.pair.draft.model.model.layers[0].self_attn.q_proj.weight.fill_(float("nan"))
    with pytest.raises(SpecprefillError, match="not finite"):
        SCORERS[name].score(request_for(random_session))


def test_bm25_matches_values_computed_by_hand():
    text = "red RED dog, blue cat reddish fox"
    # Each word is a token; the chunks hold three, two and two words.
    offsets = np.array([[0, 3], [4, 7], [8, 11], [13, 17], [18, 21], [21, 22], [22, 29], [30, 33]])
    forms = WordForms("")
    scores = bm25("The red fox, a fox?", [(forms, word_index(text, offsets[::3, 0], forms))])
    idf = np.log(1 + 2.5 / 1.5)
    norms = [1.2 * (0.25 + 0.75 * count / (7 / 3)) for count in (3, 2, 2)]
    assert scores[0] == pytest.approx(idf * 2 * 2.2 / (2 + norms[0]))
    assert scores[1] == 0
    assert scores[2] == pytest.approx(idf * 2.2 / (1 + norms[2]))


def test_bm25_treats_characters_as_words_in_unspaced_scripts():
    text = "会議は月曜日です。" * 30 + "家賃は五万円です。" + "天気は晴れです。" * 30
    scores = word_scores("家賃はいくらですか", text, np.arange(0, len(text), 8))
    assert abs(int(scores.argmax()) * 8 - text.index("家賃")) <= 8


def spans_of_text(cuts, length):
    edges = sorted({0, length, *(cut % length for cut in cuts)})
    return np.array(list(itertools.pairwise(edges)))


@given(st.lists(st.integers(0, 99), max_size=20), st.lists(st.integers(0, 99), max_size=20), st.randoms())
def test_transfer_preserves_total_importance_over_characters(from_cuts, to_cuts, random):
    source, destination = spans_of_text(from_cuts, 100), spans_of_text(to_cuts, 100)
    importance = torch.tensor([random.random() for _ in source])
    transferred = transfer(importance, source, destination)
    before = (importance.double().numpy() * (source[:, 1] - source[:, 0])).sum()
    after = (transferred.double().numpy() * (destination[:, 1] - destination[:, 0])).sum()
    assert after == pytest.approx(before, rel=1e-5)


def test_transfer_averages_tokens_that_share_a_character():
    importance = torch.tensor([0.2, 0.4, 0.6])
    transferred = transfer(importance, np.array([[0, 1], [1, 2], [1, 2]]), np.array([[0, 2]]))
    torch.testing.assert_close(transferred, torch.tensor([(0.2 + 0.5) / 2]))
