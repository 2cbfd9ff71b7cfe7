"""A batch in one process with a stub in place of a session."""

from functools import partial

from specprefill_cli.batching.arrivals import arriving
from specprefill_cli.batching.executor import InProcess
from specprefill_cli.batching.loop import record_of, run_rows


def run_batch(lines, has_documents, answer, write, finished, count):
    """Answer each line as it arrives, in order; answer: returns a row's record."""
    executor = InProcess(partial(record_of, answer=answer))
    run_rows(arriving(lines), has_documents, executor, write, finished, count, lambda: None)
