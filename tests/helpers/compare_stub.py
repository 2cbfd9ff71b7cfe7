"""Script that tests run in a terminal: a session of `compare` that never answers and loads no model."""

import threading

from specprefill_cli.cli.compare import answer_lines
from specprefill_cli.cli.console import Notes


def never_answer(question):
    print(f"asked: {question}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    answer_lines(never_answer, Notes(quiet=False))
    print("left")
