"""Every command that the README shows exists, with every option it is given."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import specprefill_cli
from specprefill_cli.cli.main import app

README = Path(specprefill_cli.__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines() if not line.startswith("#")]
CALLS = [match[1] for line in LINES for match in re.finditer(r"(?:^|\s)specprefill ([^|<>]*)", line)]


@pytest.mark.parametrize("call", CALLS)
def test_the_readme_shows_commands_that_exist(call):
    words = shlex.split(call, comments=True)
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert command.name != "specprefill" or words[0].startswith("--"), call
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_readme_shows_many_commands():
    assert len(CALLS) > 15
