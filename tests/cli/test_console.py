"""Progress on a terminal: one moving display at a time; and a pipe without padding."""

import io

from specprefill_cli.cli import console as module
from specprefill_cli.cli.console import Notes, console, plain_table


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


def test_lines_of_a_pipe_end_without_spaces():
    pipe = io.StringIO()
    table = plain_table("name", "value")
    table.add_row("a long name", "1")
    table.add_row("b", "22")
    console(pipe).print(table)
    lines = pipe.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert [line.split() for line in lines] == [["name", "value"], ["a", "long", "name", "1"], ["b", "22"]]
