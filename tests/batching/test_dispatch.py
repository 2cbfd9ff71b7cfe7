"""Rows that workers answer out of order or are lost with: a scripted executor without processes."""

from collections import Counter
from functools import partial

import pytest

from specprefill_cli.batching.arrivals import arriving
from specprefill_cli.batching.executor import Answered, Lost, Ready, Refused
from specprefill_cli.batching.loop import Count, run_rows
from specprefill_cli.errors import SpecprefillError


class Scripted:
    """Workers whose events a function decides: `react(worker, question, tickets that the worker holds)`."""

    window = 8

    def __init__(self, react, places=2, depth=1, opened=lambda worker: Ready(worker)):
        self.react, self.places, self.depth, self.opened = react, places, depth, opened
        self.started, self.sent, self.held = [], [], {}

    def start(self, worker, place, inbox):
        self.inbox = inbox
        self.started.append(place)
        self.held[worker] = []
        inbox.put(self.opened(worker))

    def send(self, worker, task):
        self.sent.append((worker, task.row.question))
        self.held[worker].append(task)
        for event in self.react(worker, self.held[worker]):
            if isinstance(event, Answered):
                self.held[worker] = [task for task in self.held[worker] if task.ticket != event.ticket]
            self.inbox.put(event)


def answered(worker, task):
    return Answered(worker, task.ticket, {"schema": 1, "answer": task.row.question.upper(), "id": task.row.identifier})


def run(executor, questions, tell=lambda _text: None):
    written, count = [], Count()
    lines = [question.encode() for question in questions]
    run_rows(arriving(lines), True, executor, written.append, Counter(), count, tell=tell)
    return written, count


def test_records_are_written_in_the_order_of_the_rows():
    def react(worker, held):
        # The first row waits until its worker holds two others.
        return [answered(worker, task) for task in reversed(held)] if len(held) == 3 else []

    written, count = run(Scripted(react, places=1, depth=3), "abc")
    assert [record["answer"] for record in written] == ["A", "B", "C"]
    assert (count.answered, count.failed) == (3, 0)


def test_no_more_rows_are_read_than_the_window_holds():
    def lines():
        for number in range(40):
            read.append(number)
            yield f"question {number}".encode()

    read, written, ahead = [], [], []
    executor = Scripted(lambda worker, held: [answered(worker, held[-1])], places=2)
    run_rows(
        arriving(lines()),
        True,
        executor,
        lambda record: ahead.append(len(read) - len(written)) or written.append(record),
        Counter(),
        Count(),
    )
    assert len(written) == 40
    assert max(ahead) <= executor.window


def test_rows_of_a_lost_worker_are_asked_again_alone():
    """Of three rows that are lost together, only the one that ends workers is given up."""

    def react(worker, held):
        if worker == 0 and len(held) < 3:
            return []
        if any(task.row.question == "poison" for task in held):
            return [Lost(worker, "it ended")]
        return [answered(worker, task) for task in held]

    executor = Scripted(react, places=1, depth=3)
    told = []
    written, count = run(executor, ["a", "poison", "b"], told.append)
    assert [record.get("answer") for record in written] == ["A", None, "B"]
    assert written[1]["error"] == {
        "type": "WorkerLost",
        "message": "asked 3 times, and each time the worker was lost (last: it ended)",
    }
    assert written[1]["id"] == 2
    assert [question for _, question in executor.sent] == ["a", "poison", "b", "a", "poison", "b", "poison"]
    assert count.failed == 1
    assert told[0] == "worker 1 was lost with row 1, 2, 3: it ended; it is started again"


def test_a_worker_that_answers_nothing_three_times_is_given_up():
    def react(worker, held):
        return [Lost(worker, "no power")] if place_of[worker] == 0 else [answered(worker, held[-1])]

    executor = Scripted(react)
    place_of = {}
    start = executor.start
    executor.start = lambda worker, place, inbox: place_of.update({worker: place}) or start(worker, place, inbox)
    told = []
    written, _ = run(executor, [f"question {number}" for number in range(20)], told.append)
    assert [record["id"] for record in written] == [*range(1, 21)]
    assert not any("error" in record for record in written)
    assert executor.started == [0, 1, 0, 0]
    assert told[-1].startswith("worker 1 was lost with row ")
    assert told[-1].endswith(": no power; it answered nothing 3 times in a row and is given up")


def test_a_batch_ends_where_no_worker_answers_anything():
    executor = Scripted(lambda worker, held: [Lost(worker, "no power")], places=1)
    with pytest.raises(SpecprefillError, match=r"no power, 3 times in a row without an answer; .* --resume") as ended:
        run(executor, ["a", "b", "c", "d"])
    assert ended.value.exit_code == 1
    assert executor.started == [0, 0, 0]


def test_a_last_row_that_ends_every_worker_is_an_error():
    executor = Scripted(
        lambda worker, held: [Lost(worker, "it ended") if held[-1].row.question == "z" else answered(worker, held[-1])],
        1,
    )
    written, count = run(executor, ["a", "z"])
    assert (["error" in record for record in written], count.failed) == ([False, True], 1)


def test_answers_between_losses_count():
    """A worker that was lost often is started again as long as it answers something in between."""
    lost = set()

    def react(worker, held):
        question = held[-1].row.question
        if question.startswith("x") and question not in lost:
            lost.add(question)
            return [Lost(worker, "it ended")]
        return [answered(worker, held[-1])]

    executor = Scripted(react, places=1)
    written, count = run(executor, [f"{'x' if number % 2 else 'a'}{number}" for number in range(20)])
    assert (len(written), count.failed, len(executor.started)) == (20, 0, 11)


@pytest.mark.parametrize("code", [1, 2])
def test_a_worker_that_cannot_be_opened_ends_the_batch_with_its_error(code):
    executor = Scripted(None, opened=lambda worker: Refused(worker, "no such model", code))
    with pytest.raises(SpecprefillError, match=r"^no such model$") as refused:
        run(executor, ["a"])
    assert refused.value.exit_code == code


def test_a_replacement_that_cannot_be_opened_counts_as_lost():
    events = iter([Ready, partial(Refused, reason="no memory", exit_code=1), Ready])
    executor = Scripted(
        lambda worker, held: [Lost(worker, "it ended")] if worker == 0 else [answered(worker, held[-1])],
        places=1,
        opened=lambda worker: next(events)(worker),
    )
    assert [record["answer"] for record in run(executor, ["a", "b"])[0]] == ["A", "B"]


def test_events_of_a_lost_worker_are_ignored():
    """An answer that arrives behind the loss must not stand in the output twice."""

    def react(worker, held):
        return [*([Lost(worker, "it ended")] if worker == 0 else []), answered(worker, held[-1])]

    written, count = run(Scripted(react, places=1), ["a", "b"])
    assert ([record["answer"] for record in written], count.answered) == (["A", "B"], 2)
