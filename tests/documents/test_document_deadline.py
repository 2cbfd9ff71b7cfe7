"""Work with a deadline."""

import threading

import pytest

from specprefill_cli.documents.reader import run_with_deadline


def test_result_and_exception_reach_the_caller() -> None:
    stop = threading.Event()
    assert run_with_deadline(stop.is_set, stop, 60) is False

    def fail() -> None:
        raise KeyError("from the work")

    with pytest.raises(KeyError, match="from the work"):
        run_with_deadline(fail, threading.Event(), 60)


def test_late_work_is_asked_to_stop() -> None:
    stop, stopped = threading.Event(), threading.Event()

    def late() -> None:
        stop.wait()
        stopped.set()

    with pytest.raises(TimeoutError):
        run_with_deadline(late, stop, 0.05)
    assert stopped.wait(60)
