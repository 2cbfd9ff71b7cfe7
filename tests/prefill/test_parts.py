"""Documents beyond the draft's context: parts, scores that compare across them, compact positions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.errors import PromptTooLong
from specprefill_cli.files import packaged_folder
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.prefill.auto_mode import automatic_mode, check_fits
from specprefill_cli.prefill.fates import shorten_gaps
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.scorers import heads as heads_module
from specprefill_cli.prefill.scorers.parts import CoreScores, divide_document, normalise_cores
from specprefill_cli.prefill.selection import chunk_scores, select_scored
from tests.helpers import sessions
from tests.helpers.sessions import GATES
from tests.prefill.helpers import make_heads, shorten_context

MANUAL = (packaged_folder("sample_docs") / "kestrel-pump-manual.md").read_text(encoding="utf-8")
TEXT = GATES * 60


def request_for(session, text=TEXT, question="When does the gate open?", **settings):
    return sessions.request_for(session, text, question, **{"max_new_tokens": 16} | settings)


def rank_correlation(first, second):
    ranks = [np.argsort(np.argsort(scores.numpy())) for scores in (first, second)]
    return np.corrcoef(ranks)[0, 1]


@given(st.integers(1, 200_000), st.integers(33, 20_000), st.integers(0, 20_000))
def test_cores_divide_the_document_and_parts_fit(tokens, size, spare):
    room = size + spare
    parts = divide_document(tokens, size, room)
    assert [0, *(part.core[1] for part in parts)] == [*(part.core[0] for part in parts), tokens]
    for part in parts:
        assert part.start <= part.core[0] < part.core[1] <= part.end <= tokens
        assert part.end - part.start <= size
        assert part.end - part.start + part.gap <= room
        if tokens <= room:
            assert part.gap == tokens - part.end


def test_parts_are_prompts_with_the_same_question(tiny_session):
    request = request_for(tiny_session)
    prompt = request.draft_prompt
    for part in divide_document(request.document_tokens, 500, 2_000):
        cut = part.cut_prompt(prompt)
        assert torch.equal(cut.tokens[slice(*cut.question)], prompt.tokens[slice(*prompt.question)])
        first = prompt.document[0]
        held = prompt.tokens[first + part.start : first + part.end]
        assert torch.equal(cut.tokens[slice(*cut.document)], held)
        core = prompt.tokens[first + part.core[0] : first + part.core[1]]
        assert torch.equal(cut.tokens[part.core_slice(cut)], core)


def test_normalisers_of_parts_are_those_of_one_softmax():
    """Three parts of one head with one query share the last ten keys. These count once."""
    scores = torch.randn(3, 1, 1, 40, generator=torch.Generator().manual_seed(1))
    largest = scores.amax(-1)
    parts = [
        CoreScores(
            weights=(part[..., :30] - peak[..., None]).exp(),
            largest=peak,
            masses=torch.stack([part[..., :30].logsumexp(-1), part[..., 30:].logsumexp(-1)]),
        )
        for part, peak in zip(scores, largest, strict=True)
    ]
    cores = scores[..., :30].exp().flatten()
    expected = 0.5 * cores / (cores.sum() + scores[..., 30:].exp().sum() / 3)
    torch.testing.assert_close(normalise_cores(parts, torch.tensor([0.5])), expected)


def test_a_document_that_fits_ranks_alike_in_one_window_and_in_four(tiny_session, monkeypatch):
    place = MANUAL.index("40 metres")
    correlations = []
    for question in ("How long may the cable to the motor be?", "What wire connects the supply?"):
        request = request_for(tiny_session, MANUAL, question, scorer="heads", keep=0.2)
        tokens = request.document_tokens
        parts = divide_document(tokens, tokens // 4 + 300, tokens)
        assert len(parts) == 4
        undivided = SCORERS["heads"].score(request)
        with monkeypatch.context() as patch:
            patch.setattr(heads_module, "document_parts", lambda _request, parts=parts: parts)
            divided = SCORERS["heads"].score(request)
        correlations.append(rank_correlation(undivided.importance, divided.importance))
        if question.startswith("How long"):
            token = int(np.searchsorted(request.prompt.offsets[:, 0], place))
            chunk = token // request.chunk_size
            assert all(chunk in select_scored(request, scores).chunks for scores in (undivided, divided))
    assert np.mean(correlations) >= 0.94


ADVISES_SELECT = r"the prompt has [\d,]+ tokens.*context of 400; .*use --mode select"
NO_ROOM = r"with a single chunk of its document, .*context of 400; .*a shorter question"


@pytest.mark.parametrize(
    ("mode", "settings", "message"),
    [
        ("full", {}, ADVISES_SELECT),
        ("draft-kv", {}, ADVISES_SELECT),
        ("select", {"positions": "original"}, "the prompt has"),
        # These scorers need all attention at once.
        ("select", {"scorer": "question"}, "does not fit"),
        ("select", {"question": "When? " * 300}, NO_ROOM),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(random_session, mode, settings, message):
    with pytest.raises(PromptTooLong, match=message):
        check_fits(request_for(shorten_context(random_session, 400), **settings), mode)


@pytest.mark.parametrize("scorer", sorted({*SCORERS} - {"question", "paper"}))
def test_every_scorer_takes_documents_of_any_length(random_session, scorer):
    session = shorten_context(random_session, 400)
    request = request_for(session, scorer=scorer)
    assert request.draft_prompt.length > 1_500
    check_fits(request, "select")
    scores = SCORERS[scorer].score(request)
    assert scores.importance.shape == (request.document_tokens,)
    assert torch.isfinite(scores.importance).all()
    assert torch.equal(scores.importance, SCORERS[scorer].score(request).importance)


def test_parts_work_with_two_tokenizers(two_tokenizers):
    pair = two_tokenizers.pair
    pair.draft.context, pair.scoring_heads = 900, make_heads(pair.draft, (1, 0, 1.0))
    request = request_for(two_tokenizers, scorer="heads", mode="select")
    assert request.draft_prompt.length > 3 * 900
    assert SCORERS["heads"].score(request).importance.shape == (request.document_tokens,)


def test_scoring_in_parts_costs_as_much_per_token_however_long_the_document(random_session):
    session = shorten_context(random_session, 800)
    costs = [SCORERS["heads"].cost(request_for(session, TEXT * times)) / times for times in (4, 8)]
    assert costs[0] == pytest.approx(costs[1], rel=0.1)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.integers(0, 400))
def test_compact_positions_keep_order_and_distances_and_fit(flags, spare):
    chosen = torch.tensor(flags)
    kept, total = chosen.nonzero()[:, 0], len(flags)
    room = len(kept) + spare
    compact = shorten_gaps(kept, total, room)
    assert compact.end == min(total, room)
    assert 0 <= compact.factor <= 1
    steps, original = compact.positions.diff(), kept.diff()
    assert (steps >= 1).all()
    assert (steps <= original).all()
    assert (steps[original == 1] == 1).all()
    if len(kept):
        assert compact.positions[0] >= 0
        assert compact.positions[-1] < compact.end
    if total <= room:
        assert torch.equal(compact.positions, kept)


def test_select_computes_kept_tokens_at_compact_positions(random_session):
    session = shorten_context(random_session, 600)
    request = request_for(session, scorer="lexical", keep=0.1)
    result = MODES["select"].prefill(request)
    kept = result.plan.kept_tokens
    assert result.compact.end == result.answer_position == min(2 * kept, 600 - 16)
    assert torch.equal(result.state.positions, result.compact.positions)
    assert torch.equal(result.seen_tokens, result.plan.kept_positions())
    tokens = request.prompt.tokens[result.seen_tokens]
    plain, _ = prefill(request.target.model, tokens, result.compact.positions, 64)
    torch.testing.assert_close(result.logits, plain, rtol=1e-3, atol=1e-3)
    assert result.compact.factor < 0.5


@pytest.mark.parametrize(("positions", "keep"), [("auto", 0.1), ("compact", 0.1), ("compact", 1.0)])
def test_positions_where_the_original_ones_fit(random_session, positions, keep):
    request = request_for(random_session, scorer="lexical", keep=keep, positions=positions)
    result = MODES["select"].prefill(request)
    assert (result.compact is None) == (positions == "auto")
    if keep == 1:
        assert torch.equal(result.compact.positions, torch.arange(result.plan.prompt_tokens))
    elif positions == "compact":
        assert result.answer_position == 2 * result.plan.kept_tokens < result.plan.prompt_tokens
        assert 0 < result.compact.factor < 0.2
    else:
        assert result.answer_position == result.plan.prompt_tokens


def test_keep_is_capped_by_the_targets_context_with_a_warning_and_auto_says_why(random_session):
    session = shorten_context(random_session, 400)
    result = MODES["select"].prefill(request_for(session, scorer="lexical", keep=0.9))
    assert result.plan.kept_tokens <= 400 - 16
    assert any("keep 0.9 of" in warning and "context of 400" in warning for warning in result.warnings)
    automatic = MODES["select"].prefill(request_for(session, scorer="random"))
    assert automatic.plan.kept_tokens < 400 / 2
    assert automatic.warnings == ()
    mode, reason = automatic_mode(request_for(session))
    assert mode == "select"
    assert "tokens with 16 of answer do not fit random-llama-1's context of 400" in reason


def test_a_draft_with_a_shorter_context_reads_in_parts_while_the_target_computes_original_positions(random_session):
    result = MODES["select"].prefill(request_for(shorten_context(random_session, 600, 4_096), keep=0.1, scorer="heads"))
    assert result.compact is None
    assert chunk_scores(result.importance, 32).count_nonzero() > 1
