"""Run by the tests under torchrun: the command line, whose rank 1 dies where it should prefill."""

import os
import signal

from specprefill_cli.cli.main import main
from specprefill_cli.distributed.worker import Follower


def die(_follower, _order):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_follower, _order):
    raise RuntimeError("no room left")


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Follower.prefill = {"die": die, "fail": fail}[os.environ["RANK_1"]]
    main()
