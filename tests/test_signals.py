"""Ctrl-C where no wait sees it come: the signal goes to another thread, as if it had come just before the wait."""

import signal
import threading

import pytest

from specprefill_cli.batching.loop import Inbox
from specprefill_cli.batching.rows import Line


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to a process, not to a thread")
def test_ctrl_c_ends_a_wait_that_it_did_not_wake():
    inbox, came = Inbox(), threading.Event()

    def deliver():
        came.set()
        inbox.put(Line(b""))

    def wait():
        interrupt.start()
        rescue.start()
        inbox.wait()

    interrupt = threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    # Without this, a wait that Ctrl-C does not end would never end.
    rescue = threading.Timer(20, deliver)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert not came.is_set()
    finally:
        rescue.cancel()
        interrupt.join()
