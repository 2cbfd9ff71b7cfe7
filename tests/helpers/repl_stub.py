"""Script that tests run in a terminal: an interactive session that never answers and loads no model."""

import sys
import threading

from specprefill_cli.cli.console import Notes, console
from specprefill_cli.cli.repl import Repl, open_history, prompted_lines, run_repl


class NeverAnswers(Repl):
    def ask(self, question):
        print(f"asked: {question}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    repl = NeverAnswers(session=None, collection=None, settings=None, modes=("full",))
    run_repl(repl, prompted_lines(open_history()), console(sys.stdout), Notes(quiet=True))
    print("left")
