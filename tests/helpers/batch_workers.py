"""Ray actors without a model, for tests of `batch`. `batch_workers.py INPUT OUTPUT WORKERS` runs a resumable batch.

The first word of a question is a command: `crash` kills the actor, `once PATH` kills it if PATH does not exist yet,
`device PATH` fails the device in the same case, `error` raises, and `work N` computes. Answers name the actor's process.
"""

import hashlib
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

from specprefill_cli.batching.loop import BatchEnded, Count, run_rows
from specprefill_cli.batching.output import RowWriter, open_output
from specprefill_cli.batching.ray_rows import connect
from specprefill_cli.batching.rows import lines_of
from specprefill_cli.errors import UsageError
from tests.helpers.batches import StubEngine


def open_stub():
    return StubEngine(answer)


def refuse_to_open():
    raise UsageError("no such model")


def answer(row):
    command, _, argument = row.question.partition(" ")
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
    if command == "work":
        # As long as a short answer takes.
        digest = row.question.encode()
        for _ in range(int(argument)):
            digest = hashlib.sha256(digest).digest()
    print("a library's chatter on standard output")
    return {"schema": 1, "answer": row.question, "process": os.getpid(), "documents": list(row.documents)}


def main(source, out, workers):
    with (
        open(source, "rb") as lines,
        open_output(Path(out), resume=True) as (stream, finished),
        closing(connect(open_stub, None, int(workers), 0)) as engine,
    ):
        run_rows(lines_of(lines), True, engine, RowWriter(stream), finished, Count())


if __name__ == "__main__":
    main(*sys.argv[1:])
