"""Script that tests run: the CLI, with the signal in `SIGNAL` at the first decode step."""

import os
import signal

from specprefill_cli.__main__ import main
from specprefill_cli.decoding.runner import SequenceRunner

read = SequenceRunner.read


def interrupt_and_read(*arguments, **options):
    os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
    return read(*arguments, **options)


if __name__ == "__main__":
    SequenceRunner.read = interrupt_and_read
    main()
