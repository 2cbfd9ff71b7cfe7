"""Running the command line inside the test's process."""

import sys
from io import BytesIO, TextIOWrapper

import pytest

from specprefill_cli.cli import main as entry


@pytest.fixture
def call(monkeypatch, capsys):
    """Run `specprefill ARGUMENTS` in this process: exit code, standard output, standard error."""

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["specprefill", *arguments])
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            entry.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run
