"""Work with a deadline."""

import threading

import pytest

from specprefill_cli.documents.deadline import run_with_deadline


def test_result_and_exception_reach_the_caller() -> None:
    assert run_with_deadline(lambda stop: stop.is_set(), 60) is False

    def fail(stop: threading.Event) -> None:
        raise KeyError("from the work")

    with pytest.raises(KeyError, match="from the work"):
        run_with_deadline(fail, 60)


def test_late_work_is_asked_to_stop() -> None:
    stopped = threading.Event()

    def late(stop: threading.Event) -> None:
        stop.wait()
        stopped.set()

    with pytest.raises(TimeoutError, match=r"not done after 0\.05 s"):
        run_with_deadline(late, 0.05)
    assert stopped.wait(60)
