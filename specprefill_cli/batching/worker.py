"""What a worker in another process does: it opens its session once, and answers the rows that it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from specprefill_cli.batching.executor import (
    Answered,
    Answerer,
    DeviceFailure,
    Lost,
    Opener,
    Place,
    Ready,
    Refused,
    Task,
    Tell,
)
from specprefill_cli.batching.loop import record_of
from specprefill_cli.errors import SpecprefillError, first_line


@dataclass
class Worker:
    """Turns what happens in this process into events for the driver's inbox."""

    number: int
    opener: Opener
    place: Place
    answerer: Answerer | None = field(default=None, init=False)

    def open(self, tell: Tell) -> Ready | Refused | Lost:
        """Open the session."""
        try:
            self.answerer = self.opener(self.place, tell)
        except SpecprefillError as error:
            return Refused(self.number, str(error), error.exit_code)
        except Exception as error:
            return Lost(self.number, f"it cannot be opened: {type(error).__name__}: {first_line(error)}")
        return Ready(self.number)

    def answer(self, task: Task) -> Answered | Lost:
        """Answer a row; after a failure of the device, the worker is lost."""
        assert self.answerer is not None, "the worker was opened"
        try:
            return Answered(self.number, task.ticket, record_of(task.row, self.answerer))
        except DeviceFailure as error:
            return Lost(self.number, error.reason)

    def answer_all(self, tasks: SimpleQueue[Task | None], send: Callable[[Answered | Lost], None]) -> None:
        """Answer the rows that come until the worker is lost: several at a time where its session does that."""
        from specprefill_cli.answering.session import Session
        from specprefill_cli.batching.answerer import SessionAnswerer
        from specprefill_cli.batching.row_scheduler import RowScheduler, drive

        session = self.answerer.session if isinstance(self.answerer, SessionAnswerer) else None
        if (
            isinstance(self.answerer, SessionAnswerer)
            and isinstance(session, Session)
            and self.answerer.concurrency != 1
        ):
            try:
                drive(
                    RowScheduler(self.answerer, session),
                    tasks,
                    lambda task, record: send(Answered(self.number, task.ticket, record)),
                )
            except DeviceFailure as error:
                send(Lost(self.number, error.reason))
            return
        event: Answered | Lost | None = None
        while not isinstance(event, Lost) and (task := tasks.get()) is not None:
            event = self.answer(task)
            send(event)
