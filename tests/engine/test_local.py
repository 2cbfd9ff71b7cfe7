"""The engine: answers do not depend on concurrent requests; order, memory, failures and cancelling."""

import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.question import Ticket
from specprefill_cli.engine.request import (
    PASSAGES,
    Cancelled,
    Done,
    Failed,
    Piece,
    QueueFull,
    Request,
    Started,
    is_device_failure,
)
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.prefill import prefix_cache
from specprefill_cli.prefill import request as prefill_request
from specprefill_cli.prefill.prefix_cache import DRAFT_PREFIX, TARGET_PREFIX, DocumentCache
from specprefill_cli.prefill.request import PhaseClock
from specprefill_cli.settings import Settings
from tests.helpers.asker import Asker
from tests.helpers.samples import collection_of

DEVICE_ERROR = "CUDA error: an illegal memory access was encountered"
TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 8
QUESTIONS = ("When does it open?", "What do tickets cost, and where does the keeper live?", "Who?", "Why at nine?")
BASE = Settings(max_new_tokens=12, keep=0.4, scorer="question")
FULL = Settings(mode="full", speculate="off", max_new_tokens=12)


def make_document(name="doc", new="nine"):
    return collection_of(TEXT.replace("nine", new), name)


DOCUMENT = make_document()
REQUEST = Request(documents=DOCUMENT, question="Who?", settings=FULL)
DOCUMENTS = [
    make_document("ten", "ten"),
    make_document("eleven", "half past eleven"),
    DOCUMENT,
    make_document("six", "six"),
]


def make_asker(session, **options):
    return Asker(session, FULL, DOCUMENT, **options)


@pytest.fixture
def session(random_session, monkeypatch):
    """A session without stop tokens, so that answers have their full length."""
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    random_session.warm_up(FULL)
    return random_session


@pytest.fixture
def asker(session):
    return make_asker(session)


def answer_singly(session, question="Who?", settings=FULL, documents=DOCUMENT):
    return session.ask(documents, question, settings).finished()


def make_requests(documents=(DOCUMENT,) * 4, **settings):
    return [
        (document, question, BASE.varied(**settings)) for document, question in zip(documents, QUESTIONS, strict=True)
    ]


def answer_together(session, requests, **options):
    """Submit all questions at once, and return their answers."""
    asker = make_asker(session, **options)
    for number, (documents, question, settings) in enumerate(requests):
        asker.submit(number, question, settings, documents)
    asker.finish()
    records = [asker.record(number) for number in range(len(requests))]
    assert [asker.text(number) for number in range(len(requests))] == [record.answer for record in records]
    return records


@pytest.mark.slow
@pytest.mark.parametrize("speculate", ["off", "auto", 3])
@pytest.mark.parametrize("mode", ["full", "select", "draft-kv", "hybrid"])
def test_greedy_answers_are_those_of_one_at_a_time(random_session, mode, speculate):
    for documents in ((DOCUMENT,) * 4, DOCUMENTS):
        requests = make_requests(documents, mode=mode, speculate=speculate)
        single_session = random_session.with_cache(DocumentCache())
        expected = [single_session.ask(*question).finished() for question in requests]
        answers = answer_together(random_session.with_cache(DocumentCache()), requests)
        assert [answer.answer for answer in answers] == [answer.answer for answer in expected]
        assert [answer.spans for answer in answers] == [answer.spans for answer in expected]


def test_a_sampled_answer_does_not_depend_on_its_neighbours(random_session):
    requests = [
        (document, question, settings.varied(temperature=0.8, seed=number))
        for number, (document, question, settings) in enumerate(make_requests(DOCUMENTS, mode="full"))
    ]
    answers = [answer.answer for answer in answer_together(random_session, requests)]
    assert answers == [answer.answer for answer in answer_together(random_session, requests, concurrency=1)]
    assert answers[1:] == [answer.answer for answer in answer_together(random_session, requests[1:])]


def test_questions_share_what_was_computed_of_their_document(random_session):
    session = random_session.with_cache(DocumentCache())
    for mode, prefix in (("full", TARGET_PREFIX), ("select", DRAFT_PREFIX)):
        reused = [prefix in answer.reused for answer in answer_together(session, make_requests(mode=mode))]
        assert reused == [False, True, True, True]


def test_no_request_is_written_out_while_it_is_answered(session, monkeypatch):
    """The text of a request has all of its documents and models: it takes as long as many passes."""
    monkeypatch.setattr(Ticket, "__repr__", Mock(side_effect=AssertionError("written out")))
    assert all(answer.generated_tokens for answer in answer_together(session, make_requests()))


def test_passes_of_several_answers_run_together(session, asker):
    widths = []
    first_layer = session.pair.target.model.model.layers[0]
    with first_layer.register_forward_pre_hook(lambda _layer, states: widths.append(states[0].shape[1])):
        for question in QUESTIONS:
            asker.submit(question, question)
        asker.finish()
    assert {asker.record(question).generated_tokens for question in QUESTIONS} == {12}
    # Each question begins a few passes after the one before.
    assert widths.count(4) >= 2


def test_answers_go_on_between_the_passes_of_a_prefill(session, asker):
    asker.submit("a", settings=FULL.varied(max_new_tokens=40))
    asker.step_until("a", Piece)
    asker.submit("b", "Why?", FULL.varied(prefill_chunk=64))
    before = len(asker.events("a"))
    asker.step_until("b", Started)
    assert len(asker.events("a")) - before > 3
    asker.finish()
    assert asker.text("a") == answer_singly(session, settings=FULL.varied(max_new_tokens=40)).answer
    assert asker.text("b") == answer_singly(session, "Why?", FULL.varied(prefill_chunk=64)).answer


@pytest.mark.parametrize(("limits", "order"), [({}, ["b", "a"]), ({"memory_limit": 1}, ["a", "b"])])
def test_a_far_shorter_request_begins_between_the_passes_of_a_prefill(session, limits, order):
    asker, short = make_asker(session, independent=True), collection_of("The gate opens at nine.")
    vars(asker.engine).update(limits)
    asker.submit("a", settings=FULL.varied(prefill_chunk=64))
    asker.submit("b", documents=short)
    asker.finish()
    assert [name for name, event in asker.log if isinstance(event, Started)] == order
    assert asker.text("a") == answer_singly(session, settings=FULL.varied(prefill_chunk=64)).answer
    assert asker.text("b") == answer_singly(session, documents=short).answer


def test_requests_without_documents_begin_in_order(session):
    asker = make_asker(session, independent=True)
    for name in "abc":
        asker.submit(name, documents=collection_of(""), settings=FULL)
    asker.finish()
    assert [name for name, event in asker.log if isinstance(event, Started)] == ["a", "b", "c"]


def test_a_text_that_is_tokenised_delays_only_questions_about_it(session, monkeypatch):
    encode, texts, went_on = prefix_cache.encode_text, [], threading.Event()

    def encode_or_wait(tokenizer, text):
        texts.append(text)
        assert text != DOCUMENT.text or went_on.wait(20)
        return encode(tokenizer, text)

    monkeypatch.setattr(prefix_cache, "encode_text", encode_or_wait)
    engine = LocalEngine(session.with_cache(DocumentCache()))
    same = [engine.submit(REQUEST, print) for _ in range(2)]
    engine.submit(replace(REQUEST, documents=DOCUMENTS[0]), print).encoded.result(10)
    went_on.set()
    assert all(ticket.encoded.result(20) for ticket in same)
    assert sorted(texts) == sorted([DOCUMENT.text, DOCUMENTS[0].text])


def test_requests_without_an_answer_run_beside_answers(session, asker):
    long = FULL.varied(max_new_tokens=100)
    asker.submit("a", settings=long)
    asker.step_until("a", Piece)
    asker.submit("b", task=PASSAGES, settings=BASE)
    asker.step_until("b", Done)
    assert not any(isinstance(event, Done) for event in asker.events("a"))
    asker.finish()
    assert asker.text("a") == answer_singly(session, settings=long).answer
    assert asker.record("b").question == "Who?"


def test_names_are_read_by_the_engine(session, tmp_path):
    (tmp_path / "doc.txt").write_text(TEXT)
    asker = make_asker(session)
    asker.submit("a", documents=(str(tmp_path / "doc.txt"),))
    asker.submit("lost", documents=(str(tmp_path / "lost.txt"),))
    asker.finish()
    assert asker.record("a").answer == answer_singly(session).answer
    assert "No such file" in str(asker.last("lost").error)


def test_concurrency_limits_running_questions_and_keeps_their_order(session):
    asker = make_asker(session, concurrency=1)
    tickets = [asker.submit(name) for name in "abc"]
    asker.step_until("a", Piece)
    assert [ticket in asker.engine.waiting for ticket in tickets] == [False, True, True]
    with pytest.raises(QueueFull):
        asker.submit("d", limit=2)
    asker.finish()
    assert [name for name, event in asker.log if isinstance(event, Done)] == ["a", "b", "c"]


def test_memory_decides_how_many_run(session):
    asker, max_running = make_asker(session), 0
    asker.engine.memory_limit = 1
    for question in QUESTIONS:
        asker.submit(question, question)
    while asker.engine.busy:
        asker.engine.step()
        max_running = max(max_running, len(asker.engine.running))
    assert max_running == 1
    assert all(isinstance(asker.last(question), Done) for question in QUESTIONS)


def test_waiting_is_no_part_of_the_time_to_first_token(monkeypatch):
    now = 10.0
    monkeypatch.setattr(prefill_request.time, "perf_counter", lambda: now)
    clock = PhaseClock()
    with clock.phase("tokenize"):
        now = 11.0
    now = 20.0
    clock.resume()
    with clock.phase("scoring"):
        now = 22.0
    assert (clock.seconds, clock.ttft) == ({"tokenize": 1.0, "scoring": 2.0}, 3.0)


def test_a_question_that_fails_does_not_disturb_the_others(session, asker, monkeypatch):
    original = Session.resolve

    def fail(self, encoded, settings):
        if encoded.question == "Why?":
            raise ZeroDivisionError
        return original(self, encoded, settings)

    monkeypatch.setattr(Session, "resolve", fail)
    asker.submit("not admitted", "Why?")
    asker.submit("good", settings=BASE)
    asker.submit("empty", " ")
    asker.submit("impossible", settings=BASE.varied(mode="draft-kv", scorer="lexical"))
    asker.finish()
    errors = {"not admitted": ZeroDivisionError, "empty": UsageError, "impossible": SpecprefillError}
    for name, error in errors.items():
        assert isinstance(asker.last(name).error, error)
    assert asker.record("good").answer == asker.text("good") != ""


def test_a_failure_of_the_engine_itself_ends_every_request(session, asker, monkeypatch):
    monkeypatch.setattr(LocalEngine, "admit", lambda _engine: 1 / 0)
    for name in "ab":
        asker.submit(name)
    with pytest.raises(ZeroDivisionError):
        asker.engine.run()
    assert all(isinstance(asker.last(name).error, ZeroDivisionError) for name in "ab")
    with pytest.raises(QueueFull):
        asker.submit("late")


def test_a_failed_batched_pass_is_run_for_each_question_separately(session):
    requests = make_requests(mode="full", speculate="off")
    expected = [session.ask(*question).finished().answer for question in requests]

    def fail(_module, states):
        if states[0].shape[1] == len(QUESTIONS):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with session.pair.target.model.model.layers[1].mlp.register_forward_pre_hook(fail):
        assert [answer.answer for answer in answer_together(session, requests)] == expected


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_question_that_lacks_memory_is_retried_by_itself(session, monkeypatch, attempts):
    """The retry runs by itself in short passes, and may lack memory too."""
    asker = make_asker(session.with_cache(DocumentCache()))
    prefill, passes = Session.prefill, []

    def prefill_or_fail(self, mode, request):
        if request.question == "Why?":
            passes.append((len(asker.engine.running), request.prefill_chunk))
            if len(passes) <= attempts:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return prefill(self, mode, request)

    monkeypatch.setattr(Session, "prefill", prefill_or_fail)
    for name, question in {"a": "Who a?", "b": "Why?", "c": "Who c?"}.items():
        asker.submit(name, question)
    asker.finish()
    assert passes[0][0] > 0
    assert passes[1:] == [(0, 512)]
    assert asker.text("a") == answer_singly(session, "Who a?").answer
    assert asker.text("c") == answer_singly(session, "Who c?").answer
    last = asker.last("b")
    if attempts == 2:
        assert isinstance(last.error, torch.OutOfMemoryError)
    else:
        assert last.result.answer == answer_singly(session, "Why?").answer


def test_cancelling_ends_an_answer_as_ctrl_c_does_and_leaves_the_others_complete(session, asker):
    ticket = asker.submit("a", "Why?")
    asker.submit("b")
    asker.step_until("a", Piece)
    asker.engine.cancel(ticket)
    asker.step_until("a", Done)
    answer = asker.last("a").result
    assert (answer.stopped, answer.answer) == ("interrupt", asker.text("a"))
    assert answer.generated_tokens < FULL.max_new_tokens
    asker.finish()
    assert asker.text("b") == answer_singly(session).answer


def test_cancelling_in_prefill_ends_the_question_at_its_next_pass(session, asker):
    passes = []

    def cancel(_layer, _states):
        passes.append(1)
        asker.engine.cancel(ticket)

    ticket = asker.submit("a", settings=FULL.varied(prefill_chunk=32))
    with session.pair.target.model.model.layers[0].register_forward_pre_hook(cancel):
        asker.step_until("a", Failed)
    assert isinstance(asker.last("a").error, Cancelled)
    assert len(passes) == 1
    asker.submit("b")
    asker.finish()
    assert asker.text("b") == answer_singly(session).answer


def test_cancelling_a_waiting_request_frees_its_place_at_once(asker):
    asker.submit("a", limit=1)
    ticket = asker.submit("b", limit=2)
    with pytest.raises(QueueFull):
        asker.submit("c", limit=2)
    asker.engine.cancel(ticket)
    assert isinstance(asker.last("b").error, Cancelled)
    asker.submit("c", limit=2)


def test_ctrl_c_ends_the_answer_of_a_caller_that_waits_for_it(session):
    engine = LocalEngine(session)
    passes = []

    def interrupt(_module, _arguments):
        passes.append(1)
        if len(passes) == 4:
            raise KeyboardInterrupt

    with session.pair.target.model.model.rotary_emb.register_forward_pre_hook(interrupt):
        *pieces, last = engine.ask(REQUEST)
    text = "".join(event.text for event in pieces if isinstance(event, Piece))
    assert last.result.stopped == "interrupt"
    assert last.result.answer == text.strip()
    assert answer_singly(session).answer.startswith(last.result.answer)


def test_ctrl_c_at_the_end_of_an_answer_leaves_it_complete(session, monkeypatch):
    result, calls = AnswerStream.result, []

    def interrupt(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return result(*arguments)

    monkeypatch.setattr(AnswerStream, "result", interrupt)
    engine = LocalEngine(session)
    *_, last = engine.ask(REQUEST)
    assert last.result.answer == answer_singly(session).answer
    assert not engine.busy


def test_ctrl_c_in_prefill_reaches_the_caller(session):
    engine, layer = LocalEngine(session), session.pair.target.model.model.layers[1].mlp
    with pytest.raises(KeyboardInterrupt), layer.register_forward_pre_hook(Mock(side_effect=KeyboardInterrupt)):
        list(engine.ask(REQUEST))
    assert not engine.busy


def test_independent_answers_learn_nothing_from_each_other(session):
    asker = make_asker(session.with_cache(DocumentCache()), independent=True)
    settings = FULL.varied(mode="auto", speculate="auto")
    for name in "abc":
        asker.submit(name, settings=settings)
    asker.finish()
    assert len({asker.record(name).reason for name in "abc"}) == 1
    assert asker.submit("d").session.speculation is not session.speculation


def test_a_template_is_that_of_its_request(session, asker):
    template = replace(session.template, text="Answer in one word. " + session.template.text)
    asker.submit("custom", template=template)
    asker.submit("common")
    asker.finish()
    assert asker.record("custom").prompt_tokens > asker.record("common").prompt_tokens


def test_nothing_is_left_when_the_device_fails_in_a_pass(session, asker):
    asker.submit("running")
    asker.step_until("running", Piece)
    for name in "ab":
        asker.submit(name)
    layer = session.pair.target.model.model.layers[1].mlp
    with layer.register_forward_pre_hook(Mock(side_effect=RuntimeError(DEVICE_ERROR))):
        asker.engine.run()
    for name in ("running", "a", "b"):
        assert DEVICE_ERROR in str(asker.last(name).error)
    assert not asker.engine.busy
    with pytest.raises(QueueFull):
        asker.submit("late")


def test_a_closing_engine_finishes_its_requests(asker):
    asker.submit("a")
    asker.submit("b", task=PASSAGES, settings=BASE)
    thread = threading.Thread(target=asker.engine.run)
    thread.start()
    asker.engine.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(asker.last("a"), Done)
    assert isinstance(asker.last("b"), Done)


class AcceleratorError(RuntimeError):
    """Has the name of torch's error, which some versions lack."""


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (AcceleratorError(f"{DEVICE_ERROR}\nCUDA kernel errors might be ..."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), True),
        (AcceleratorError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
    ],
)
def test_device_failures_are_recognised(error, failed):
    assert is_device_failure(error) == failed
