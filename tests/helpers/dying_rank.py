"""Script that tests run under torchrun: the CLI, with a rank 1 that dies or fails at prefill."""

import os
import signal

from specprefill_cli.answering.rank_worker import Worker
from specprefill_cli.cli.main import main
from specprefill_cli.errors import SpecprefillError


def die(_worker, _command):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(_worker, _command):
    raise SpecprefillError("no such file on this machine")


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Worker.prefill = {"die": die, "refuse": refuse}[os.environ["RANK_1"]]
    main()
