"""The command line: a module for each command."""

import time

# Start-up time counts from here, as early as possible.
STARTED = time.perf_counter()
