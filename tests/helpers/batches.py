"""A batch with a stub in place of an engine."""

from specprefill_cli.batching import Batch
from specprefill_cli.engine.request import Done, Failed
from specprefill_cli.settings import Settings


class StubRecord(dict):
    """The record of an answer."""

    def __init__(self, **values):
        super().__init__({"schema": 1, "id": None, "warnings": [], **values})

    def to_json(self):
        return self


class StubEngine:
    """Answers each request immediately. answer: returns the text of a question's answer, or raises its error."""

    capacity = 1

    def __init__(self, answer):
        self.answer = answer

    def submit(self, request, on_event):
        try:
            on_event(Done(StubRecord(answer=self.answer(request.question))))
        except Exception as error:
            on_event(Failed(error))

    def cancel(self, ticket):
        """Do nothing."""

    def close(self):
        """Do nothing."""


def run_batch(lines, answer, write, **options):
    """Run a batch with an engine, or with the answers of a stub, and return its counts."""
    engine = answer if hasattr(answer, "submit") else StubEngine(answer)
    batch = Batch(engine=engine, settings=Settings(), documents=("a.md",), write=write, **options)
    batch.run(lines)
    return batch.count
