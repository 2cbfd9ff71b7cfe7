"""Ctrl-C where no wait sees it come: the signal goes to another thread, as if it had come just before the wait."""

import signal
import threading

import pytest

from tests.helpers.batches import run_batch


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to a process, not to a thread")
def test_ctrl_c_ends_a_wait_that_it_did_not_wake():
    came = threading.Event()

    def lines():
        interrupt.start()
        # Without a limit, a wait that Ctrl-C does not end would never end.
        came.wait(20)
        yield b""

    interrupt = threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            run_batch(lines(), str.upper, [].append)
    finally:
        came.set()
        interrupt.join()
