"""Run a parser with a deadline, on every operating system.

The parser runs in a daemon thread, since `signal.alarm` exists neither on Windows nor outside the main thread, and a
child process starts slowly. Python cannot kill a thread, so a late parser is asked to stop through an event.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from specprefill_cli.signals import SLICE_SECONDS

T = TypeVar("T")


class Abandoned(Exception):
    """Raised inside a parser whose caller has stopped waiting."""


def check_stop(stop: threading.Event) -> None:
    """Raise `Abandoned` once `stop` is set."""
    if stop.is_set():
        raise Abandoned


def run_with_deadline(work: Callable[[], T], stop: threading.Event, seconds: float) -> T:
    """Return the result of `work()`, or raise what it raises.

    `stop` is set when nobody waits any more (deadline, Ctrl-C); long work calls `check_stop` now and then.
    Raises TimeoutError after `seconds` of wall-clock time.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised again in the caller's thread
            outcome.set_exception(error)

    deadline = time.monotonic() + seconds
    threading.Thread(target=run, name="document-reader", daemon=True).start()
    try:
        while not outcome.done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done after {seconds:g} s")
            wait((outcome,), timeout=SLICE_SECONDS)
        return outcome.result()
    finally:
        stop.set()
