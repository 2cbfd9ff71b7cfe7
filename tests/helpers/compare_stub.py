"""Script that tests run in a terminal: a session of `compare` that never answers and loads no model."""

import threading

from specprefill_cli.cli.compare import Comparer, answer_lines
from specprefill_cli.cli.console import Notes


class NeverAnswers(Comparer):
    def ask(self, question):
        print(f"asked: {question}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    answer_lines(NeverAnswers(session=None, collection=None, settings=None, modes=("full",), notes=Notes(quiet=False)))
    print("left")
