"""Script that tests run: the CLI, which the signal in `SIGNAL` ends at its first decode step."""

import os
import signal

from specprefill_cli.cli.main import main
from specprefill_cli.decoding.reader import ModelReader

read = ModelReader.read


def interrupted_read(*arguments, **options):
    os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
    return read(*arguments, **options)


if __name__ == "__main__":
    ModelReader.read = interrupted_read
    main()
