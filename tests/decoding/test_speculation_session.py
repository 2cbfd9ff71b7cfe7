"""Speculative decoding through the session: all architectures and modes, the bundled pair, rejected settings."""

from dataclasses import replace

import pytest
import torch

from specprefill_cli.errors import UsageError
from specprefill_cli.files import packaged_folder
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.reporting.table import answer_table
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.sessions import GATES, collection_of, session_of

pytestmark = pytest.mark.slow

COLLECTION = collection_of(GATES * 8)
SLIDING_WINDOW_ONLY = "mistral"


def ask(session, stop=True, **settings):
    stream = session.ask(COLLECTION, "When?", Settings(**{"max_new_tokens": 24, "mode": "full", **settings}))
    if not stop:
        stream.stop_tokens = frozenset()
    return stream, stream.finished()


@pytest.fixture(params=["same weights", "other weights"])
def session(request, random_pair):
    """A draft that is the target, so always right, and a draft with other weights, almost never right."""
    draft = random_pair.target if request.param == "same weights" else random_pair.draft
    return session_of(replace(random_pair, draft=draft))


@pytest.mark.parametrize("random_pair", sorted(ARCHITECTURES), indirect=True)
@pytest.mark.parametrize("mode", sorted(MODES))
def test_greedy_speculation_matches_plain_decoding(session, mode):
    name = session.pair.target.name
    if SLIDING_WINDOW_ONLY in name and mode in ("draft-kv", "hybrid"):
        pytest.skip("these modes need a draft that sees the whole document")
    scorer = "lexical" if SLIDING_WINDOW_ONLY in name else "question"
    common = {"mode": mode, "keep": 0.4, "scorer": scorer, "stop": False}
    plain, unspeculated = ask(session, speculate="off", **common)
    assert unspeculated.speculation.state == "off"
    assert unspeculated.acceptance_rate is None
    length = plain.request.prompt.length
    kept = [place for place in plain.prefilled.state.positions.tolist() if place < length]
    for settings in (
        {"speculate": 4, "proposer": "draft"},
        {"speculate": 3, "proposer": "lookup"},
        {"speculate": 5},
        {"speculate": "auto"},
    ):
        stream, answer = ask(session, **settings, **common)
        assert stream.tokens == plain.tokens
        assert answer.answer == unspeculated.answer
        assert answer.generated_tokens == 24
        state = stream.prefilled.state
        assert [layer.get_seq_length() for layer in state.cache.layers] == [state.length] * 3
        assert stream.prefilled.state.positions.tolist() == kept + list(range(length, length + 23))
        if settings.get("proposer") == "draft":
            assert (answer.proposer, answer.draft) == ("draft", session.pair.draft.name)
            if mode == "full":
                assert (answer.acceptance_rate == 1) == (session.pair.draft is session.pair.target)


@pytest.mark.parametrize("positions", ["original", "compact"])
def test_after_select_a_draft_without_a_cache_reads_what_the_target_kept(random_pair, positions):
    session = session_of(replace(random_pair, draft=random_pair.target))
    settings = {"mode": "select", "scorer": "lexical", "keep": 0.4, "positions": positions}
    stream, answer = ask(session, stop=False, speculate=3, proposer="draft", **settings)
    slots, state = stream.prefilled.plan.kept_positions(), stream.speculator.proposers[0].runner.state
    assert len(slots) < stream.request.prompt.length
    assert torch.equal(state.positions[: len(slots)], stream.prefilled.state.positions[: len(slots)])
    # The same model behind the same tokens proposes what it verifies.
    assert answer.acceptance_rate == 1


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"top_k": 20}])
@pytest.mark.parametrize("speculate", ["auto", 3])
def test_a_seed_reproduces_the_answer(session, settings, speculate):
    common = {"temperature": 1.2, "seed": 5, "speculate": speculate, "mode": "select", "keep": 0.5, **settings}
    first, answer = ask(session, **common)
    # What the session learns in between must not change the answer.
    ask(session, speculate="auto", mode="select", keep=0.5)
    assert ask(session, **common)[0].tokens == first.tokens
    if session.pair.draft is session.pair.target and speculate == 3:
        assert answer.acceptance_rate > 0.3


def test_different_tokenizers_allow_only_the_lookup_proposer(two_tokenizers):
    message = "--proposer draft: draft and target have different tokenizers; use --proposer"
    with pytest.raises(UsageError, match=message):
        ask(two_tokenizers, proposer="draft")
    plain, _ = ask(two_tokenizers, mode="select", keep=0.4, proposer="draft", speculate="off")
    for proposer in ("lookup", "auto"):
        stream, _ = ask(two_tokenizers, mode="select", keep=0.4, proposer=proposer, speculate=4)
        assert [active.name for active in stream.speculator.proposers] == ["lookup"]
        assert stream.tokens == plain.tokens


def test_rejects_the_draft_proposer_without_a_draft(random_pair):
    session = session_of(replace(random_pair, draft=None))
    with pytest.raises(UsageError, match="--proposer draft: no draft is loaded"):
        ask(session, proposer="draft")
    assert ask(session)[1].generated_tokens > 0


@pytest.fixture(scope="module")
def quote(tiny_session):
    """Return a function that answers from a document, starting with a sentence quoted from it."""
    body = (packaged_folder("sample_docs") / "sources" / "orchard-report.md").read_text(encoding="utf-8")[:4_000]
    collection = collection_of(body)
    opening = " " + " ".join(body[body.index("The cooperative was founded") :].split()[:14])

    def answer(**settings):
        settings = Settings(**{"max_new_tokens": 64, "mode": "full", **settings})
        stream = tiny_session.ask(collection, "Repeat the report.", settings, opening=opening)
        stream.stop_tokens = frozenset()
        return stream.finished(), stream.tokens

    return answer


def table_of(answer):
    return dict(zip(*(column._cells for column in answer_table(answer).columns), strict=True))


def test_speculation_statistics_are_in_table_and_json(quote):
    answer, _ = quote(speculate=4)
    record = answer.to_json()
    assert set(record["proposer"].split(" and ")) <= {"lookup", "draft"}
    assert record["speculation"] == {"state": "on", "reason": None}
    histogram = record["accepted_histogram"]
    assert sum(place * count for place, count in enumerate(histogram)) / sum(histogram) == pytest.approx(
        record["accepted_length_mean"]
    )
    assert 0 < record["acceptance_rate"] <= 1
    words = f"{record['acceptance_rate']:.2f} of the tokens that {record['proposer']} proposed"
    assert words in table_of(answer)["acceptance"]


def test_reports_when_speculation_turns_off(random_pair):
    session = session_of(random_pair)
    _, answer = ask(session, stop=False, max_new_tokens=100, mode="select", keep=0.5, proposer="draft")
    assert answer.speculation.state == "off"
    assert "plain decoding is faster: draft promises" in answer.speculation.reason
    assert "off  (plain decoding is faster" in str(table_of(answer)["speculation"])
