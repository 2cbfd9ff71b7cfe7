"""A batch with a stub in place of an engine."""

from specprefill_cli.batching.loop import run_rows


class StubEngine:
    """Answers one row after the other, at once. answer: returns a row's record, or raises its error."""

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
        """Nothing to end."""


def run_batch(lines, has_documents, answer, write, finished, count, **options):
    """Answer each line as it arrives, in order; answer: returns a row's record."""
    run_rows(lines, has_documents, StubEngine(answer), write, finished, count, **options)
