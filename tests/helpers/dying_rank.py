"""Script that tests run under torchrun: the CLI, with a rank 1 that dies or fails in prefill."""

import os
import signal

from specprefill_cli.__main__ import main
from specprefill_cli.decoding import runner
from specprefill_cli.errors import SpecprefillError


def die(_mode, _request, _shard):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(_mode, _request, _shard):
    raise SpecprefillError("no such file on this machine")


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        runner.prefill_shard = {"die": die, "refuse": refuse}[os.environ["RANK_1"]]
    main()
