"""`python -m tests.helpers.batch_stub ROWS OUTPUT`: a resumable batch that must not import torch."""

import hashlib
import sys
from pathlib import Path

from specprefill_cli.batching.output import RowWriter, open_output
from tests.helpers.batches import run_batch


def answer(question):
    digest = question.encode()
    for _ in range(1_500):
        digest = hashlib.sha256(digest).digest()
    if question.endswith("7"):
        raise ValueError("sevens fail")
    return digest.hex() * 20


def main(source, out):
    with open(source, "rb") as lines, open_output(Path(out), resume=True) as (stream, finished):
        run_batch(lines, answer, RowWriter(stream), finished=finished)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.exit("imported torch" if "torch" in sys.modules else 0)
