"""Script that tests run: the CLI, interrupted by Ctrl-C at its first decode step."""

import os
import signal

from specprefill_cli.cli.main import main
from specprefill_cli.decoding.reader import ModelReader

read = ModelReader.read


def interrupted_read(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return read(*arguments, **options)


if __name__ == "__main__":
    ModelReader.read = interrupted_read
    main()
