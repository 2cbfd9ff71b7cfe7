"""A batch with a stub in place of an engine."""

from specprefill_cli.batching.loop import run_rows


class StubEngine:
    """Answers each row immediately. answer: returns a row's record, or raises its error."""

    capacity = 1

    def __init__(self, answer):
        self.answer = answer

    def ask(self, row, deliver):
        try:
            outcome = self.answer(row)
        except Exception as error:
            outcome = error
        deliver(outcome)
        return lambda: None

    def close(self):
        """Do nothing."""


def run_batch(lines, has_documents, answer, write, finished, count, **options):
    """Run a batch with a stub engine. answer: returns a row's record."""
    run_rows(lines, has_documents, StubEngine(answer), write, finished, count, **options)
