"""Rows answered several at a time in this process: order, errors, memory, and what a failed device does."""

import json
from collections import Counter
from contextlib import closing
from queue import SimpleQueue

import pytest
import torch

from specprefill_cli.batching import row_scheduler
from specprefill_cli.batching.answerer import SessionAnswerer, read_once
from specprefill_cli.batching.arrivals import arriving
from specprefill_cli.batching.executor import Task
from specprefill_cli.batching.loop import Count, run_rows
from specprefill_cli.batching.row_scheduler import InThread, RowScheduler, drive
from specprefill_cli.batching.rows import Row
from specprefill_cli.batching.scheduler import Scheduler
from specprefill_cli.batching.tickets import Event
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.settings import Settings

OWN = Collection((one_page_document("a.txt", "The gate opens at nine. The mill is by the river. " * 20, "text/plain"),))
SETTINGS = Settings(mode="full", max_new_tokens=6)
ROWS = [
    {"id": number, "question": f"When is number {number}?", "max_new_tokens": 1 + 5 * (number % 2)}
    for number in range(9)
]


@pytest.fixture
def answerer(random_session):
    random_session.warm_up(SETTINGS)
    return SessionAnswerer(random_session, SETTINGS, read_once(None), OWN, concurrency=4)


def run(answerer, rows, **options):
    written, count = [], Count()
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    with closing(InThread(answerer, answerer.session)) as executor:
        run_rows(arriving(lines), True, executor, written.append, Counter(), count, **options)
    assert count.answered == len(written)
    return written


def test_records_are_those_of_one_at_a_time_and_in_order(answerer):
    written = run(answerer, ROWS)
    assert [record["id"] for record in written] == list(range(9))
    assert [record["answer"] for record in written] == [
        answerer(Row(row["id"], row["question"], (), {"max_new_tokens": row["max_new_tokens"]}))["answer"]
        for row in ROWS
    ]


def test_unordered_records_come_as_they_are_done(answerer):
    rows = [{**ROWS[0], "max_new_tokens": 40}, *ROWS[1:]]
    written = run(answerer, rows, ordered=False)
    assert sorted(record["id"] for record in written) == list(range(9))
    assert written[0]["id"] != 0


def test_a_row_that_cannot_be_asked_has_an_error_in_its_place(answerer):
    rows = [
        ROWS[0],
        {"id": "bad", "question": "Who?", "mode": "draft-kv"},
        {"id": "k", "question": "Who?", "keep": 7},
    ]
    first, second, third = run(answerer, rows)
    assert (first["id"], second["id"], third["id"]) == (0, "bad", "k")
    assert "error" not in first
    assert "needs the draft" in second["error"]["message"]
    assert "keep" in third["error"]["message"]


def test_a_failed_device_ends_the_batch(answerer, monkeypatch):
    def fail(_scheduler):
        raise_in = next(iter(asked))
        return [Event(ticket=raise_in, error=RuntimeError("CUDA error: an illegal memory access was encountered"))]

    asked = []
    real = Scheduler.submit
    monkeypatch.setattr(Scheduler, "submit", lambda self, *rest: asked.append(real(self, *rest)) or asked[-1])
    monkeypatch.setattr(Scheduler, "step", fail)
    with pytest.raises(SpecprefillError, match=r"the device failed \(CUDA error.* --resume"):
        run(answerer, ROWS)


def test_a_row_that_is_out_of_memory_is_asked_again_alone(answerer, monkeypatch):
    real, active = Scheduler.step, []

    def step(self):
        events = real(self)
        for place, event in enumerate(events):
            if event.answer is not None and event.answer.question == "When is number 1?":
                events[place] = Event(ticket=event.ticket, error=torch.OutOfMemoryError("CUDA out of memory"))
        return events

    rows = RowScheduler(answerer, answerer.session)
    ask = SessionAnswerer.ask
    monkeypatch.setattr(Scheduler, "step", step)
    monkeypatch.setattr(
        SessionAnswerer, "ask", lambda self, *rest: active.append(rows.scheduler.active) or ask(self, *rest)
    )
    for number in range(3):
        rows.add(Task(number, Row(number, f"When is number {number}?")))
    records = {}
    while not rows.idle:
        records.update((task.ticket, record) for task, record in rows.step())
    assert active == [0]
    assert sorted(records) == [0, 1, 2]
    assert not any("error" in record for record in records.values())


def test_the_end_does_not_wait_for_rows_that_nobody_wants(answerer, monkeypatch):
    monkeypatch.setattr(row_scheduler, "CLOSING", 60.0)

    def write(_record):
        raise BrokenPipeError

    lines = [json.dumps(row).encode() + b"\n" for row in ROWS]
    with closing(InThread(answerer, answerer.session)) as executor, pytest.raises(BrokenPipeError):
        run_rows(arriving(lines), True, executor, write, Counter(), Count())
    assert not executor.thread.is_alive()


def test_no_more_rows_are_read_than_can_start(answerer):
    read = []

    class Watched(RowScheduler):
        def add(self, task):
            read.append(self.scheduler.active + self.scheduler.pending)
            super().add(task)

    tasks = SimpleQueue()
    for number, row in enumerate(ROWS):
        tasks.put(Task(number, Row(row["id"], row["question"], (), {"max_new_tokens": 2})))
    tasks.put(None)
    drive(Watched(answerer, answerer.session), tasks, lambda _task, _record: None)
    assert len(read) == len(ROWS)
    assert max(read) < answerer.concurrency


def test_closing_ends_rows_after_the_pass_in_hand(answerer, monkeypatch):
    monkeypatch.setattr(row_scheduler, "CLOSING", 60)
    executor = InThread(answerer, answerer.session)
    inbox = SimpleQueue()
    executor.start(0, 0, inbox)
    for number in range(8):
        executor.send(0, Task(number, Row(str(number), "When?", (), {"max_new_tokens": 400})))
    executor.close()
    assert not executor.thread.is_alive()
    assert inbox.qsize() < 8
