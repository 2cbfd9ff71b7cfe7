"""`--help`: paragraphs that fit any width, examples on one line, and a default for every option."""

import json

import pytest
import typer

from specprefill_cli.cli.main import command_line

COMMANDS = typer.main.get_command(command_line())
OURS = (
    "ask",
    "compare",
    "passages",
    "plan",
    "doctor",
    "config show",
    "config set",
)


def command_of(name):
    command = COMMANDS
    for part in name.split():
        command = command.commands[part]
    return command


@pytest.mark.parametrize("name", OURS)
def test_help_fits_eighty_columns(call, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(*name.split(), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    lines = [line.strip() for line in out.partition("Example")[2].splitlines()[1:]]
    examples = [line for line in lines[: next(n for n, line in enumerate(lines) if line.startswith("╭"))] if line]
    # The second half of a wrapped line would lack the program's name.
    assert examples
    assert all("specprefill" in example for example in examples)


@pytest.mark.parametrize("name", OURS)
def test_every_option_that_takes_a_value_shows_its_default(name):
    options = [param for param in command_of(name).params if param.param_type_name == "option" and not param.is_flag]
    assert [option.name for option in options if option.default is None and not option.show_default] == []
    assert [option.name for option in options if option.default is None and option.show_default is True] == []


def test_a_value_equal_to_the_default_wins_over_the_environment(call, monkeypatch):
    monkeypatch.setenv("SPECPREFILL_PAIR", "qwen3-8b")
    code, out, _ = call("doctor", "--pair", "tiny", "--json")
    assert code == 0
    assert "pair tiny" in [check["name"] for check in json.loads(out)["checks"]]
