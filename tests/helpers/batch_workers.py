"""Ray actors without a model, for tests of `batch`. `batch_workers.py INPUT OUTPUT WORKERS` runs a resumable batch.

The first word of a question is a command: `crash` kills the actor, `once PATH` kills it if PATH does not exist yet,
`device PATH` fails the device in the same case, and `error` raises.
"""

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

from specprefill_cli.batching import BatchEnded
from specprefill_cli.batching.output import RowWriter, open_output
from specprefill_cli.batching.ray_engine import connect_to_ray
from specprefill_cli.batching.rows import lines_of
from tests.helpers.batches import StubEngine, run_batch


def open_stub():
    return StubEngine(answer)


def answer(question):
    command, _, argument = question.partition(" ")
    if command == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if command == "once" and not Path(argument).exists():
        Path(argument).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if command == "device" and not Path(argument).exists():
        Path(argument).touch()
        raise BatchEnded("the device failed")
    if command == "error":
        raise ValueError("no such thing")
    print("a library's chatter on standard output")
    return question


def main(source, out, workers):
    with (
        open(source, "rb") as lines,
        open_output(Path(out), resume=True) as (stream, finished),
        closing(connect_to_ray(open_stub, None, int(workers), 0)) as engine,
    ):
        run_batch(lines_of(lines), engine, RowWriter(stream), finished=finished)


if __name__ == "__main__":
    main(*sys.argv[1:])
