"""Script that tests run under torchrun: rank 1 blocks and never takes a command."""

import os
import threading

from specprefill_cli.distributed.launch import join_run

if __name__ == "__main__":
    join_run()
    if os.environ["RANK"] == "1":
        threading.Event().wait()
    print("done", flush=True)
