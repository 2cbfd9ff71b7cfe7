"""Work with a deadline, on every operating system.

The work runs in a daemon thread and the caller waits for it. Why not the alternatives: ``signal.alarm`` exists
neither on Windows nor outside the main thread; a child process starts slowly, must be importable by name (so a
caller's script needs a ``__main__`` guard) and copies the document twice. The price: Python cannot kill a
thread. Work that is late is asked to stop through an event and otherwise abandoned; being a daemon it does not
keep the process alive.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

# On Windows a waiting main thread does not see Ctrl-C: wait in slices of this many seconds.
_SLICE_SECONDS = 0.1


def run_with_deadline(work: Callable[[threading.Event], T], seconds: float) -> T:
    """The result of ``work(stop)``; whatever it raises is raised here.

    ``stop`` is set when nobody waits any more (deadline, Ctrl-C): long work checks it now and then.
    Raises TimeoutError when ``seconds`` of wall-clock time have passed.
    """
    stop = threading.Event()
    outcome: Future[T] = Future()

    def target() -> None:
        try:
            outcome.set_result(work(stop))
        except BaseException as error:  # handed to the caller, who raises it
            outcome.set_exception(error)

    deadline = time.monotonic() + seconds
    threading.Thread(target=target, name="document-reader", daemon=True).start()
    try:
        while not outcome.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"not done after {seconds:g} s")
            wait((outcome,), timeout=min(left, _SLICE_SECONDS))
        return outcome.result()
    finally:
        stop.set()
