"""The scheduler: the answers of one at a time, whatever runs beside them; order, memory, errors and cancelling."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from specprefill_cli.batching.scheduler import Scheduler
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.prefill import phases
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.prefix_cache import DRAFT_PREFIX, TARGET_PREFIX, DocumentCache
from specprefill_cli.settings import Settings

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 8
QUESTIONS = ("When does it open?", "What do tickets cost, and where does the keeper live?", "Who?", "Why at nine?")
BASE = Settings(max_new_tokens=12, keep=0.4, scorer="question")


def document(name="doc", old="nine", new="nine"):
    return Collection((one_page_document(name, TEXT.replace(old, new), "text/plain"),))


ONE = document()
OTHERS = [document("ten", new="ten"), document("eleven", new="half past eleven"), ONE, document("six", new="six")]


def finish(scheduler):
    """Run to the end: the text pieces of each ticket, and its last event."""
    texts, last = defaultdict(str), {}
    while not scheduler.idle:
        for event in scheduler.step():
            assert event.ticket not in last
            if event.last:
                last[event.ticket] = event
            else:
                texts[event.ticket] += event.text
    return texts, last


def answers(session, asked, **options):
    """Answers of questions about documents with settings, all at once."""
    scheduler = Scheduler(session, **options)
    tickets = [scheduler.submit(collection, question, settings) for collection, question, settings in asked]
    texts, last = finish(scheduler)
    for ticket in tickets:
        if last[ticket].error is not None:
            raise last[ticket].error
        assert texts[ticket].strip() == last[ticket].answer.answer
    return [last[ticket].answer for ticket in tickets]


def one_at_a_time(session, asked):
    return [session.ask(*question).finished() for question in asked]


def questions(documents=(ONE,) * 4, **settings):
    return [(one, question, BASE.varied(**settings)) for one, question in zip(documents, QUESTIONS, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("speculate", ["off", "auto", 3])
@pytest.mark.parametrize("mode", ["full", "select", "draft-kv", "hybrid"])
def test_greedy_answers_are_those_of_one_at_a_time(random_session, mode, speculate):
    for documents in ((ONE,) * 4, OTHERS):
        asked = questions(documents, mode=mode, speculate=speculate)
        expected = one_at_a_time(random_session.with_cache(DocumentCache()), asked)
        got = answers(random_session.with_cache(DocumentCache()), asked)
        assert [answer.answer for answer in got] == [answer.answer for answer in expected]
        assert [answer.spans for answer in got] == [answer.spans for answer in expected]


@pytest.mark.slow
def test_trained_models_answer_as_one_at_a_time(tiny_session):
    asked = [(one, question, BASE.varied(scorer="auto")) for one in OTHERS for question in QUESTIONS]
    expected = one_at_a_time(tiny_session, asked)
    assert [answer.answer for answer in answers(tiny_session, asked)] == [answer.answer for answer in expected]


def test_a_sampled_answer_does_not_depend_on_its_neighbours(random_session):
    asked = [
        (one, question, settings.varied(temperature=0.8, seed=number))
        for number, (one, question, settings) in enumerate(questions(OTHERS, mode="full"))
    ]
    got = [answer.answer for answer in answers(random_session, asked)]
    assert got == [answer.answer for answer in answers(random_session, asked, concurrency=1)]
    assert got[1:] == [answer.answer for answer in answers(random_session, asked[1:])]


def test_questions_share_what_was_computed_of_their_document(random_session):
    session = random_session.with_cache(DocumentCache())
    for mode, shared in (("full", TARGET_PREFIX), ("select", DRAFT_PREFIX)):
        reused = [shared in answer.reused for answer in answers(session, questions(mode=mode))]
        assert reused == [False, True, True, True]


def test_passes_of_several_questions_run_together(random_session):
    widths = []
    handle = random_session.pair.target.model.model.layers[0].register_forward_pre_hook(
        lambda _layer, states: widths.append(states[0].shape[1])
    )
    scheduler = Scheduler(random_session)
    settings = BASE.varied(mode="full", speculate="off")
    for question in QUESTIONS:
        scheduler.submit(ONE, question, settings, stop_tokens=False)
    _, last = finish(scheduler)
    handle.remove()
    assert {event.answer.generated_tokens for event in last.values()} == {12}
    assert widths.count(4) >= 8


def test_only_so_many_run_at_once_and_all_are_answered(random_session):
    scheduler = Scheduler(random_session, concurrency=2)
    tickets = [scheduler.submit(ONE, question, BASE.varied(mode="full")) for question in QUESTIONS]
    assert (scheduler.pending, scheduler.active, scheduler.idle) == (4, 0, False)
    scheduler.step()
    assert (scheduler.pending, scheduler.active) == (2, 2)
    assert set(finish(scheduler)[1]) == set(tickets)
    assert (scheduler.pending, scheduler.active) == (0, 0)


def test_memory_decides_how_many_run(random_session):
    scheduler = Scheduler(random_session, memory_bytes=1)
    most = 0
    for question in QUESTIONS:
        scheduler.submit(ONE, question, BASE)
    answered = 0
    while not scheduler.idle:
        answered += sum(event.last for event in scheduler.step())
        most = max(most, scheduler.active)
    assert (most, answered) == (1, 4)


def test_waiting_for_memory_is_no_part_of_the_time_to_first_token(random_session, monkeypatch):
    resumed = []
    monkeypatch.setattr(PhaseClock, "resume", lambda clock: resumed.append(clock))
    scheduler = Scheduler(random_session, memory_bytes=1)
    for question in QUESTIONS[:2]:
        scheduler.submit(ONE, question, BASE)
    finish(scheduler)
    assert len(resumed) == 1


def test_a_clock_counts_nothing_of_a_wait(monkeypatch):
    now = 10.0
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now)
    clock = PhaseClock()
    with clock.phase("tokenize"):
        now = 11.0
    now = 20.0
    clock.resume()
    with clock.phase("scoring"):
        now = 22.0
    assert (clock.seconds, clock.ttft) == ({"tokenize": 1.0, "scoring": 2.0}, 3.0)


def test_a_question_that_fails_does_not_disturb_the_others(random_session):
    scheduler = Scheduler(random_session)
    good = scheduler.submit(ONE, "Who?", BASE)
    empty = scheduler.submit(ONE, " ", BASE)
    impossible = scheduler.submit(ONE, "Who?", BASE.varied(mode="draft-kv", exact_layers=1))
    _, last = finish(scheduler)
    assert isinstance(last[empty].error, UsageError)
    assert isinstance(last[impossible].error, SpecprefillError)
    assert last[good].answer is not None


def test_a_pass_that_fails_together_is_run_for_each_alone(random_session):
    asked = questions(mode="full", speculate="off")
    expected = [answer.answer for answer in one_at_a_time(random_session, asked)]

    def fail(_module, states):
        if states[0].shape[1] == len(QUESTIONS):
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = random_session.pair.target.model.model.layers[1].mlp.register_forward_pre_hook(fail)
    got = [answer.answer for answer in answers(random_session, asked)]
    handle.remove()
    assert got == expected


def test_an_error_of_one_pass_is_the_error_of_its_question(random_session):
    settings = BASE.varied(mode="full")
    random_session.warm_up(settings)
    scheduler = Scheduler(random_session)
    tickets = [scheduler.submit(ONE, question, settings) for question in QUESTIONS[:2]]
    lengths = []

    def fail(_module, states):
        lengths.append(states[0].shape[1])
        if len(lengths) < 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    handle = random_session.pair.target.model.model.layers[1].mlp.register_forward_pre_hook(fail)
    _, last = finish(scheduler)
    handle.remove()
    # Together, then the first alone.
    assert "illegal memory access" in str(last[tickets[0]].error)
    assert last[tickets[1]].answer is not None


def test_cancelled_questions_have_no_events_and_hold_nothing(random_session):
    scheduler = Scheduler(random_session, concurrency=1)
    running, waiting, other = (scheduler.submit(ONE, question, BASE) for question in QUESTIONS[:3])
    scheduler.step()
    scheduler.cancel(running)
    scheduler.cancel(waiting)
    assert (scheduler.active, scheduler.pending) == (0, 1)
    assert running.work is None
    _, last = finish(scheduler)
    assert list(last) == [other]


def test_an_interrupted_answer_is_complete_up_to_there_and_no_other_ends(random_session):
    settings = BASE.varied(mode="full", speculate="off")
    expected = one_at_a_time(random_session, [(ONE, "Why?", settings)])
    scheduler = Scheduler(random_session)
    ended, other, waiting = (scheduler.submit(ONE, question, settings) for question in ("Who?", "Why?", "When?"))
    scheduler.most = 2
    texts, last = defaultdict(str), {}
    while not texts[ended]:
        for event in scheduler.step():
            texts[event.ticket] += event.text
    assert scheduler.interrupt(ended)
    assert not scheduler.interrupt(waiting)
    for events in finish(scheduler):
        for ticket, event in events.items():
            if isinstance(event, str):
                texts[ticket] += event
            else:
                last[ticket] = event.answer
    assert set(last) == {ended, other}
    assert last[ended].stopped == "interrupt"
    assert last[ended].answer == texts[ended].strip()
    assert last[other].answer == expected[0].answer


def test_a_question_is_answered_by_its_own_session_and_taken_where_it_runs(random_session):
    template = replace(random_session.template, text="Answer in one word. " + random_session.template.text)
    variant = replace(random_session, template=template, cache=DocumentCache(), startup_seconds=7.0)
    settings = BASE.varied(mode="full")
    scheduler = Scheduler(random_session.with_cache(DocumentCache()))
    taken = []
    scheduler.submit(
        ONE, "Who?", settings, session=variant, consume=lambda stream, pieces: taken.append((stream, *pieces))
    )
    common = scheduler.submit(ONE, "Who?", settings)
    _, last = finish(scheduler)
    assert set(last) == {common}
    ((stream, *pieces),) = taken
    own = stream.result()
    assert own.answer == "".join(pieces).strip() == variant.ask(ONE, "Who?", settings).finished().answer
    assert (own.startup_seconds, last[common].answer.startup_seconds) == (7.0, 0.0)
    assert own.prompt_tokens > last[common].answer.prompt_tokens


def test_only_questions_with_one_cache_wait_for_each_other(random_session):
    settings = BASE.varied(mode="full", prefill_chunk=64)
    scheduler = Scheduler(random_session.with_cache(DocumentCache()))
    other = random_session.with_cache(DocumentCache())
    for session in (None, other, other):
        scheduler.submit(ONE, "Who?", settings, session=session)
    scheduler.step()
    assert (scheduler.active, scheduler.pending) == (2, 1)
    assert len(finish(scheduler)[1]) == 3


def test_ctrl_c_in_a_pass_reaches_the_caller(random_session):
    scheduler = Scheduler(random_session)
    scheduler.submit(ONE, "Who?", BASE.varied(mode="full"))

    def interrupt(*_):
        raise KeyboardInterrupt

    layer = random_session.pair.target.model.model.layers[1].mlp
    random_session.warm_up(BASE.varied(mode="full"))
    handle = layer.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        finish(scheduler)
    handle.remove()
