"""Answering through the session with random weights, in every mode on every architecture."""

from dataclasses import replace

import pytest
import torch

from specprefill_cli.answering.session import open_session
from specprefill_cli.answering.tasks import retrieve
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prompting import Template
from specprefill_cli.record import Fate
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.samples import collection_of

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 12
COLLECTION = collection_of(TEXT)
# All layers of this architecture have a window far shorter than the prompt, so only scorers without a draft run.
SLIDING_WINDOW_ONLY = "mistral"


def ask(session, collection=COLLECTION, question="When?", **settings):
    stream = session.ask(collection, question, Settings(**{"max_new_tokens": 4, **settings}))
    pieces = list(stream)
    return stream, "".join(pieces), stream.result()


@pytest.mark.parametrize("random_pair", sorted(ARCHITECTURES), indirect=True)
@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_answers_on_every_architecture(random_session, mode):
    name = random_session.pair.target.name
    scorer = "lexical" if SLIDING_WINDOW_ONLY in name else "question"
    if scorer == "lexical" and mode in ("draft-kv", "hybrid"):
        with pytest.raises(SpecprefillError, match="needs a scorer that runs the draft"):
            ask(random_session, mode=mode, scorer=scorer)
        return
    stream, text, answer = ask(random_session, mode=mode, keep=0.4, scorer=scorer)
    assert answer.mode == mode
    assert answer.answer == text.strip()
    assert answer.ttft_seconds > 0
    assert answer.ttft_seconds == pytest.approx(sum(answer.phases.values()), rel=0.02)
    kept = sum(span.end - span.start for span in answer.spans if span.fate is Fate.RECOMPUTE)
    outside = answer.prompt_tokens - sum(span.end - span.start for span in answer.spans)
    assert answer.kept_tokens == kept + outside + stream.prefilled.plan.checkpoints
    assert answer.kept_ratio == 1 if mode == "full" else answer.kept_ratio <= 0.5 + 32 / answer.prompt_tokens


def test_the_bundled_pair_answers_in_the_data_types_of_any_processor(processor_dtype):
    session = open_session(Settings(dtype=processor_dtype))
    for loaded in (session.pair.loaded_target, session.pair.loaded_draft):
        assert loaded.model.dtype is getattr(torch, processor_dtype)
    for settings in ({"mode": mode} for mode in MODES):
        _, text, _ = ask(session, question="How much are the tickets?", max_new_tokens=12, proposer="draft", **settings)
        assert "four" in text


@pytest.mark.parametrize("scorer", sorted(SCORERS))
def test_select_prefills_exactly_the_kept_tokens_at_their_positions(random_session, scorer):
    stream, _, _ = ask(random_session, mode="select", keep=0.3, scorer=scorer)
    positions = stream.prefilled.plan.kept_positions()
    assert len(positions) < stream.request.prompt.length
    expected, _ = prefill(random_session.pair.target.model, stream.request.prompt.tokens[positions], positions, 10_000)
    assert torch.equal(stream.prefilled.logits, expected)
    state = stream.prefilled.state
    assert state.positions[: len(positions)].tolist() == positions.tolist()
    # Decoding continues at the position after the whole prompt, not after the kept tokens.
    first, decoded = stream.request.prompt.length, state.length - len(positions)
    assert state.positions[len(positions) :].tolist() == list(range(first, first + decoded))


def test_reports_the_draft_window(random_session):
    settings = {"mode": "select", "keep": 0.3, "scorer": "question"}
    _, _, narrow = ask(random_session, **settings, draft_window=40)
    _, _, unlimited = ask(random_session, **settings, draft_window="off")
    _, _, lexical = ask(random_session, **settings | {"scorer": "lexical"}, draft_window=40)
    assert (narrow.scorer, narrow.draft_window) == ("question", 40)
    assert (unlimited.scorer, unlimited.draft_window) == ("question", None)
    assert (lexical.scorer, lexical.draft_window) == ("lexical", None)
    assert ask(random_session, mode="full")[2].scorer is None


def test_warns_when_the_answer_is_cut(random_session):
    stream = random_session.ask(COLLECTION, "When?", Settings(max_new_tokens=2, mode="full"))
    # Random weights may produce a stop token anywhere.
    stream.stop_tokens = frozenset()
    answer = stream.finished()
    assert (len(stream.tokens), answer.stopped) == (2, "length")
    assert any("cut at 2 tokens" in warning for warning in answer.warnings)
    assert list(stream) == []


def test_rejects_nan_logits(random_session):
    with torch.no_grad():
        random_session.pair.target.model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(SpecprefillError, match=r"logits are not numbers \(NaN\); use --dtype"):
        ask(random_session, mode="full")


def test_chunk_size_beyond_the_document_is_clamped(random_session):
    for scorer in ("question", "lexical", "random", "heads"):
        settings = {"mode": "select", "keep": 0.2, "scorer": scorer, "chunk_size": 10**10}
        stream, _, answer = ask(random_session, question="When does the gate open?", **settings)
        start, end = stream.request.prompt.document
        assert (stream.request.chunk_size, answer.kept_ratio) == (end - start, 1.0)


def test_warns_when_the_drafts_context_leaves_no_room_for_proposals(random_session):
    draft = random_session.pair.draft
    random_session.pair = replace(random_session.pair, draft=replace(draft, context=50))
    settings = {"mode": "full", "speculate": 4}
    assert "nothing is proposed" in ask(random_session, proposer="draft", **settings)[2].warnings[0]
    assert not any("propose" in text for text in ask(random_session, proposer="lookup", **settings)[2].warnings)


def test_every_phase_waits_for_the_devices_at_its_end(random_session, monkeypatch):
    waits = []
    monkeypatch.setattr("specprefill_cli.answering.session.synchronize", lambda devices: waits.append(True))
    random_session.warm_up(Settings(mode="select"))
    waits.clear()
    stream = random_session.ask(COLLECTION, "When?", Settings(mode="select", keep=0.3, scorer="question"))
    ended = [name for name, seconds in stream.request.clock.seconds.items() if seconds]
    assert {"tokenize", "draft_prefill", "scoring", "selection", "target_prefill", "first_token"} <= set(ended)
    assert len(waits) >= 1 + len(ended)


def test_a_draft_with_other_tokens_reads_its_own_prompt(two_tokenizers):
    target, draft = two_tokenizers.pair.target, two_tokenizers.pair.draft
    two_tokenizers.draft_template = Template("draft", "Find: $document -- $question", None, None)
    request = two_tokenizers.request(COLLECTION, "When?", Settings(mode="select", scorer="question"))
    text = f"{draft.tokenizer.bos_token}Find: {COLLECTION.text} -- When?"
    assert draft.tokenizer.decode(request.draft_prompt.tokens) == text
    assert target.tokenizer.decode(request.prompt.tokens).startswith(f"{target.tokenizer.bos_token}Answer")


def test_select_works_across_tokenizers(two_tokenizers):
    """The most important target token covers text that the draft's own tokens also rank highly."""
    pair = two_tokenizers.pair
    draft_session = replace(two_tokenizers, pair=CalibratedPair(pair.pair, pair.draft, pair.draft))
    assert not pair.same_tokenizer
    stream, _, answer = ask(two_tokenizers, mode="select", scorer="question", keep=0.4)
    assert stream.request.draft_prompt.length > stream.request.prompt.length
    assert len(stream.prefilled.importance) == len(stream.request.prompt.offsets)
    assert answer.kept_ratio < 0.5
    draft_stream, _, _ = ask(draft_session, mode="select", scorer="question", keep=0.4)
    start, end = stream.request.prompt.offsets[int(stream.prefilled.importance.argmax())]
    draft_scores = draft_stream.prefilled.importance[start:end]
    assert draft_scores.mean() >= 0.5 * draft_stream.prefilled.importance.max()


def test_passages_are_those_of_select_in_any_mode(two_tokenizers):
    passages = [
        retrieve(two_tokenizers, COLLECTION, "Who?", Settings(mode=mode, scorer="question", keep=0.4)).passages
        for mode in ("select", "full", "draft-kv")
    ]
    assert passages[0] == passages[1] == passages[2]
