"""The command line: one module for each command."""

import time

# Start-up time is counted from here, as early as possible.
STARTED = time.perf_counter()
