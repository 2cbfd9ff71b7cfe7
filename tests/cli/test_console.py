"""Tables on a pipe, without padding."""

import io

from specprefill_cli.cli.console import console
from specprefill_cli.reporting.table import plain_table


def test_lines_of_a_pipe_end_without_spaces():
    pipe = io.StringIO()
    table = plain_table("name", "value")
    table.add_row("a long name", "1")
    table.add_row("b", "22")
    console(pipe).print(table)
    lines = pipe.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert [line.split() for line in lines] == [["name", "value"], ["a", "long", "name", "1"], ["b", "22"]]
