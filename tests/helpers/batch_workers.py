"""Workers without a model, for tests of `batch`; run as `batch_workers.py INPUT OUTPUT WORKERS [ray]` it is a resumable batch.

A question decides what becomes of it: `crash` ends the worker, `once PATH` only as long as there is no such file; `device` is a
failure of the device, `error` an error. Any other answer names the worker's process.
"""

import hashlib
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

from specprefill_cli.batching.arrivals import source_of
from specprefill_cli.batching.loop import Count, run_rows
from specprefill_cli.batching.output import RowWriter, open_output
from specprefill_cli.batching.processes import Processes
from specprefill_cli.errors import UsageError


def opener(place, tell):
    tell(f"opened {place.number + 1} of {place.count}")
    return answer


def refusing_opener(place, tell):
    raise UsageError("no such model")


def answer(row):
    kind, _, argument = row.question.partition(" ")
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "once" and not Path(argument).exists():
        Path(argument).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "device":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if kind == "error":
        raise ValueError("no such thing")
    if kind == "work":
        # As long as a short answer takes.
        digest = row.question.encode()
        for _ in range(int(argument)):
            digest = hashlib.sha256(digest).digest()
    print("a library's chatter on standard output")
    return {"schema": 1, "answer": row.question, "process": os.getpid(), "documents": list(row.documents)}


def executor(workers, ray):
    if not ray:
        return Processes(opener, workers)
    from specprefill_cli.batching.cluster import LOCAL, connect
    from specprefill_cli.batching.preflight import needs_of
    from specprefill_cli.settings import Settings

    return connect(opener, LOCAL, workers, 0, needs_of(Settings(), ()))


def main(source, out, workers, ray=""):
    with (
        open(source, "rb") as lines,
        open_output(Path(out), resume=True) as (stream, finished),
        closing(executor(int(workers), bool(ray))) as pool,
    ):
        run_rows(
            source_of(lines),
            True,
            pool,
            RowWriter(stream),
            finished,
            Count(),
            tell=lambda text: print(text, file=sys.stderr),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
