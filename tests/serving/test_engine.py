"""The engine: its queue, answers side by side, and what happens when one of them is cancelled or fails."""

import threading
from collections import defaultdict

import pytest
import torch

from specprefill_cli.batching.scheduler import Scheduler
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.errors import UsageError
from specprefill_cli.serving.engine import AskJob, CallJob, Cancelled, Engine, QueueFull
from specprefill_cli.serving.messages import Failed, Finished, Piece, Prefilled, Result
from specprefill_cli.serving.views import request_session
from specprefill_cli.settings import Settings

DEVICE_ERROR = "CUDA error: an illegal memory access was encountered"
TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 8
DOCUMENT = Collection((one_page_document("doc", TEXT, "text/plain"),))
SETTINGS = Settings(mode="full", speculate="off", max_new_tokens=12)


def ask_job(session, question="Who?", **settings):
    return AskJob(
        session=request_session(session), collection=DOCUMENT, question=question, settings=SETTINGS.varied(**settings)
    )


@pytest.fixture
def session(random_session, monkeypatch):
    """A session whose answers have their full length."""
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    random_session.warm_up(SETTINGS)
    return random_session


@pytest.fixture
def engine(session):
    return Engine(Scheduler(session))


class Asker:
    """Submits jobs, and notes who was delivered what, in order."""

    def __init__(self, engine):
        self.engine = engine
        self.log = []

    def submit(self, name, job, limit=None):
        return self.engine.submit(job, lambda payload: self.log.append((name, payload)), limit)

    def payloads(self, name):
        return [payload for asker, payload in self.log if asker == name]

    def text(self, name):
        return "".join(payload.text for payload in self.payloads(name) if isinstance(payload, Piece)).strip()

    def step_until(self, name, kind):
        while not any(isinstance(payload, kind) for payload in self.payloads(name)):
            assert self.engine.busy
            self.engine.step()

    def finish(self):
        while self.engine.busy:
            self.engine.step()


@pytest.fixture
def asker(engine):
    return Asker(engine)


def alone(session, question="Who?", **settings):
    return session.ask(DOCUMENT, question, SETTINGS.varied(**settings)).finished().answer


def test_an_answer_comes_in_pieces_and_then_whole(session, asker):
    asker.submit("a", ask_job(session))
    asker.finish()
    first, *pieces, last = asker.payloads("a")
    assert first == Prefilled()
    assert len(pieces) > 1
    assert asker.text("a") == last.answer.answer == alone(session)


def test_questions_are_answered_side_by_side(session, asker):
    questions = {name: f"Who {name}?" for name in "abc"}
    for name, question in questions.items():
        asker.submit(name, ask_job(session, question))
    asker.finish()
    begun, ended = defaultdict(list), {}
    for place, (name, payload) in enumerate(asker.log):
        if isinstance(payload, Finished):
            ended[name] = place
        elif isinstance(payload, Piece):
            begun[name].append(place)
    assert max(places[0] for places in begun.values()) < min(ended.values())
    for name, question in questions.items():
        assert asker.text(name) == alone(session, question)


def test_calls_run_between_passes_of_an_answer(session, asker):
    asker.submit("a", ask_job(session))
    asker.step_until("a", Piece)
    asker.submit("b", CallJob(lambda: 7))
    asker.engine.step()
    assert asker.payloads("b") == [Result(7)]
    assert not any(isinstance(payload, Finished) for payload in asker.payloads("a"))
    asker.finish()
    assert asker.text("a") == alone(session)


@pytest.mark.parametrize("packs", [True, False])
def test_cancelling_ends_an_answer_as_ctrl_c_does_and_leaves_the_others_whole(session, asker, packs):
    asker.engine.scheduler.packs = packs
    ticket = asker.submit("a", ask_job(session, "Why?"))
    asker.submit("b", ask_job(session))
    asker.step_until("a", Piece)
    asker.engine.cancel(ticket)
    asker.step_until("a", Finished)
    answer = asker.payloads("a")[-1].answer
    assert (answer.stopped, answer.answer) == ("interrupt", asker.text("a"))
    assert answer.generated_tokens < SETTINGS.max_new_tokens
    asker.finish()
    assert asker.text("b") == alone(session)
    assert asker.engine.scheduler.idle


def test_cancelling_in_prefill_ends_the_question_at_once(session, asker):
    ticket = asker.submit("a", ask_job(session, prefill_chunk=32))
    asker.submit("b", ask_job(session))
    asker.engine.step()
    assert asker.payloads("a") == []
    assert ticket.started is not None
    asker.engine.cancel(ticket)
    asker.finish()
    (failed,) = asker.payloads("a")
    assert isinstance(failed.error, Cancelled)
    assert asker.text("b") == alone(session)


def test_cancelling_a_waiting_job_frees_its_place_at_once(session, asker):
    asker.submit("a", ask_job(session), limit=1)
    ticket = asker.submit("b", ask_job(session), limit=2)
    with pytest.raises(QueueFull):
        asker.submit("c", ask_job(session), limit=2)
    asker.engine.cancel(ticket)
    assert isinstance(asker.payloads("b")[0].error, Cancelled)
    asker.submit("c", ask_job(session), limit=2)


def test_questions_beyond_those_that_run_wait_in_line(session):
    asker = Asker(Engine(Scheduler(session, concurrency=1)))
    tickets = [asker.submit(name, ask_job(session)) for name in "abc"]
    asker.step_until("a", Piece)
    assert asker.engine.queued == 2
    assert [ticket.started is None for ticket in tickets] == [False, True, True]
    with pytest.raises(QueueFull):
        asker.submit("d", ask_job(session), limit=2)
    asker.finish()
    assert [name for name, payload in asker.log if isinstance(payload, Finished)] == ["a", "b", "c"]


def test_a_question_that_fails_harms_no_other(session, asker):
    def fail():
        raise ValueError("no")

    asker.submit("empty", ask_job(session, " "))
    asker.submit("call", CallJob(fail))
    asker.submit("good", ask_job(session))
    asker.finish()
    assert isinstance(asker.payloads("empty")[0].error, UsageError)
    assert isinstance(asker.payloads("call")[0].error, ValueError)
    assert asker.text("good") == alone(session)


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_question_that_lacks_memory_is_tried_again_alone(session, asker, monkeypatch, attempts):
    """Alone, it is out of memory again or not."""
    real, beside = Scheduler.answer, []

    def answer(self, ticket, prepared):
        if ticket.question == "Why?":
            beside.append(self.active - 1)
            if len(beside) <= attempts:
                raise torch.OutOfMemoryError("CUDA out of memory")
        real(self, ticket, prepared)

    monkeypatch.setattr(Scheduler, "answer", answer)
    for name, question in {"a": "Who a?", "b": "Why?", "c": "Who c?"}.items():
        asker.submit(name, ask_job(session, question))
    asker.finish()
    assert beside[0] > 0
    assert beside[1:] == [0]
    assert asker.text("a") == alone(session, "Who a?")
    assert asker.text("c") == alone(session, "Who c?")
    last = asker.payloads("b")[-1]
    if attempts == 1:
        assert last.answer.answer == alone(session, "Why?")
    else:
        assert isinstance(last.error, torch.OutOfMemoryError)


def test_nothing_is_left_waiting_when_the_device_fails(session, asker):
    def fail():
        raise RuntimeError(DEVICE_ERROR)

    asker.submit("running", ask_job(session))
    asker.step_until("running", Piece)
    for name in ("failing", "waiting"):
        asker.submit(name, CallJob(fail))
    asker.engine.run()
    for name in ("running", "failing", "waiting"):
        (failed,) = [payload for payload in asker.payloads(name) if not isinstance(payload, Prefilled | Piece)]
        assert DEVICE_ERROR in str(failed.error)
    assert asker.engine.scheduler.idle
    with pytest.raises(QueueFull):
        asker.submit("late", CallJob(fail))


def test_a_device_that_fails_in_a_pass_ends_every_question_once(session, asker):
    def fail(*_):
        raise RuntimeError(DEVICE_ERROR)

    for name in "ab":
        asker.submit(name, ask_job(session, f"{name}?"))
    handle = session.pair.target.model.model.layers[1].mlp.register_forward_pre_hook(fail)
    asker.engine.run()
    handle.remove()
    assert sorted(name for name, payload in asker.log if isinstance(payload, Failed)) == ["a", "b"]


def test_the_engine_finishes_what_it_has_when_it_closes(session, asker):
    asker.submit("a", ask_job(session))
    asker.submit("b", CallJob(lambda: 1))
    thread = threading.Thread(target=asker.engine.run)
    thread.start()
    asker.engine.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(asker.payloads("a")[-1], Finished)
    assert asker.payloads("b") == [Result(1)]
