"""Questions to a scripted server: what the draft chooses and sends, what the answer records, what is refused."""

import pytest

from specprefill_cli.answering.tasks import compare_modes
from specprefill_cli.documents.collect import read_collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.endpoint.choosing import SHORT_TOKENS
from specprefill_cli.endpoint.session import open_endpoint
from specprefill_cli.errors import UsageError
from specprefill_cli.record import json_line
from specprefill_cli.settings import Settings
from tests.helpers.samples import HANDBOOK, QUESTION
from tests.helpers.upstream import error, says

ANSWER_SENTENCE = "If you use your own car, the company pays a mileage allowance of 42 pence per mile"


@pytest.fixture(scope="module")
def handbook():
    return read_collection([HANDBOOK])


def test_the_kept_text_is_sent_as_prose_with_the_question_last(session, upstream, handbook):
    answer = session.ask(handbook, QUESTION, session.settings.varied(scorer="auto")).finished()
    system, user = upstream.bodies[0]["messages"]
    assert system["role"] == "system"
    assert "Use only what the documents say" in system["content"]
    assert user["content"].endswith(f"\n\nQuestion: {QUESTION}")
    assert f"{handbook.documents[0].name}, page 8:\n" in user["content"]
    assert ANSWER_SENTENCE in user["content"]
    assert "[...]" in user["content"]
    assert len(user["content"]) < len(handbook.text) / 4
    assert (answer.answer, answer.mode, answer.scorer) == ("42 pence", "select", "blend")
    assert (answer.draft, answer.target) == ("tiny:draft", upstream.target)
    assert answer.citations[0].page == 8


def test_the_time_to_first_token_has_both_parts(session, handbook):
    answer = session.ask(handbook, QUESTION).finished()
    assert answer.phases["draft_prefill"] > 0
    assert answer.phases["upstream"] > 0
    assert answer.ttft_seconds == pytest.approx(sum(answer.phases.values()), abs=0.01)
    record = answer.to_json()
    assert json_line(record)
    assert record["speculation"]["reason"] == "the endpoint decodes by itself"


def test_the_record_says_how_tokens_are_counted_and_what_may_have_been_cut(session, upstream, handbook):
    upstream.script = lambda _body: says("42", prompt_tokens=321)
    warnings = session.ask(handbook, QUESTION).finished().warnings
    assert "tokens are counted with tiny:draft's tokenizer; the endpoint counts 321 in the sent text" in warnings[-1]
    upstream.script = lambda _body: says("42", prompt_tokens=10)
    assert "may have cut the prompt" in session.ask(handbook, QUESTION).finished().warnings[-1]


def test_full_sends_everything_and_scores_nothing(session, upstream, handbook):
    answer = session.ask(handbook, QUESTION, Settings(target=upstream.target, mode="full")).finished()
    assert "[...]" not in upstream.sent
    assert handbook.documents[0].text.split()[-1] in upstream.sent
    assert len(upstream.sent.split()) >= len(handbook.text.split())
    assert (answer.kept_ratio, answer.scorer, answer.draft) == (1.0, None, None)
    assert answer.phases["draft_prefill"] == answer.phases["scoring"] == 0


@pytest.mark.parametrize(("sentences", "mode"), [(3, "full"), (SHORT_TOKENS // 4, "select")])
def test_auto_sends_short_documents_whole(session, sentences, mode):
    document = one_page_document("gate.txt", "The gate is open from nine to five. " * sentences)
    answer = session.ask([document], "When is the gate open?").finished()
    assert answer.mode == mode
    assert answer.reason.startswith("auto: ")


def test_keep_decides_how_much_is_sent(session, upstream, handbook):
    sizes = []
    for keep in (0.05, 0.2, 0.5):
        answer = session.ask(handbook, QUESTION, session.settings.varied(keep=keep)).finished()
        assert answer.kept_ratio >= 0.9 * keep
        sizes.append(len(upstream.sent))
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"mode": "draft-kv"}, "--mode draft-kv"),
        ({"positions": "original"}, "--positions original"),
        ({"speculate": 4, "proposer": "lookup"}, "--speculate 4, --proposer lookup"),
        ({"quantization": "int8", "adapter": "folder"}, "--adapter folder, --quantization int8"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused_by_name(session, upstream, handbook, values, named):
    settings = Settings(target=upstream.target, **values)
    for refusing in (lambda: session.ask(handbook, QUESTION, settings), lambda: open_endpoint(settings)):
        with pytest.raises(UsageError, match=f"{named}: an endpoint takes text only"):
            refusing()
    assert upstream.bodies == []


def test_an_answer_at_its_longest_says_so(session, upstream, handbook):
    upstream.script = lambda _body: says("forty", finish="length")
    answer = session.ask(handbook, QUESTION).finished()
    assert answer.stopped == "length"
    assert "--max-new-tokens" in answer.warnings[-1]


def test_modes_are_compared_and_one_that_does_not_fit_is_a_misfit(session, upstream, handbook):
    modes = ("full", "select")
    full, select = compare_modes(session, handbook, QUESTION, session.settings, modes).answers
    assert full.answer.kept_tokens > 5 * select.answer.kept_tokens
    assert (select.agreement, select.first_token_kl) == (1.0, None)
    assert select.speedup > 0
    too_long = error(400, "maximum context length is 2048 tokens")
    upstream.script = lambda body: says("42") if "[...]" in body["messages"][-1]["content"] else too_long
    comparison = compare_modes(session, handbook, QUESTION, session.settings, modes)
    assert [answer.mode for answer in comparison.answers] == ["select"]
    assert "maximum context length is 2048" in comparison.misfits["full"]
