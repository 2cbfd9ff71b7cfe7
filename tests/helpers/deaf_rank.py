"""Run by the tests under torchrun: rank 1 takes no order, not even that to end."""

import os
import threading

from specprefill_cli.distributed import launch as runs

if __name__ == "__main__":
    runs.FAREWELL = 1.0
    runs.join_run()
    if os.environ["RANK"] == "1":
        threading.Event().wait()
    print("done", flush=True)
