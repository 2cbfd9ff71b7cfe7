"""Run by the tests under torchrun: the command line, whose rank 1 dies or fails where it should prefill."""

import os
import signal

from specprefill_cli.answering.rank_worker import Worker
from specprefill_cli.cli.main import main
from specprefill_cli.errors import SpecprefillError


def die(_worker, _command):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_worker, _command):
    raise RuntimeError("no room left")


def refuse(_worker, _command):
    raise SpecprefillError("no such file on this machine")


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Worker.prefill = {"die": die, "fail": fail, "refuse": refuse}[os.environ["RANK_1"]]
    main()
