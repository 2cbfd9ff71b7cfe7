"""Progress on a terminal: one moving display at a time."""

import io

from specprefill_cli.cli import console as module
from specprefill_cli.cli.console import Notes


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_takes_the_place_of_a_running_spinner(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(module.sys, "stderr", terminal)
    notes = Notes(quiet=False)
    with notes.progress("loading"):
        spinner = notes.spinner
        with notes.bar("parts", 100) as update:
            assert not spinner._live.is_started
            update(50, "unpacking")
        assert spinner._live.is_started
    assert notes.spinner is None
    assert "unpacking" in terminal.getvalue()
