"""Shell completion without torch, and examples in every help."""

import os
import subprocess
import sys

import pytest
import typer

from specprefill_cli.cli.main import command_line
from specprefill_cli.cli.options import complete

COMMANDS = typer.main.get_command(command_line())


def every_command(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*path, name))


def test_completes_the_last_value_of_a_list():
    complete_modes = complete("mode", several=True)
    assert complete_modes("full,s") == ["full,select"]
    assert complete_modes("full,") == ["full,auto", "full,select", "full,draft-kv", "full,hybrid"]
    assert complete_modes("f") == ["full"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("specprefill ask a.pdf Who --mode s", "select"),
        ("specprefill ask a.pdf Who --scorer lex", "lexical"),
        ("specprefill ask a.pdf Who --pair qwen3-8", "qwen3-8b"),
        ("specprefill ask a.pdf Who --dtype bf", "bfloat16"),
        ("specprefill ask a.pdf Who --keep au", "auto"),
        ("specprefill evaluate q.jsonl --scorer paper,lex", "paper,lexical"),
        ("specprefill config set max", "max_new_tokens"),
        ("specprefill evaluate q.jsonl --modes full,se", "full,select"),
        ("specprefill do", "doctor"),
    ],
)
def test_completes_in_the_shell_without_torch(line, expected):
    script = (
        "import sys; sys.argv = ['specprefill']\n"
        "from specprefill_cli.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit('imported torch' if 'torch' in sys.modules or 'transformers' in sys.modules else 0)"
    )
    shell = {
        "_SPECPREFILL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | shell)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [expected]


@pytest.mark.parametrize("path", [path for path, _ in every_command(COMMANDS)], ids="-".join)
def test_every_help_has_an_example_of_its_command(path):
    command = dict(every_command(COMMANDS))[path]
    text = f"{command.help} {command.epilog or ''}"
    assert " ".join(("specprefill", *path)) in text
