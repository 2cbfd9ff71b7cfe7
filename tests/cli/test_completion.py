"""Shell completion: the same names as the registries, without torch; and examples in every help."""

import os
import subprocess
import sys

import pytest
import typer

from specprefill_cli.cli import completion
from specprefill_cli.cli.main import app
from specprefill_cli.decoding.proposers import PROPOSERS
from specprefill_cli.models.placement import DTYPES
from specprefill_cli.models.quantization import QUANTIZATIONS
from specprefill_cli.prefill.registry import MODES, SCORERS

COMMANDS = typer.main.get_command(app)


def every_command(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*path, name))


def test_the_names_are_those_of_the_registries():
    assert ("auto", *MODES) == completion.MODES
    assert set(completion.SCORERS) == {"auto", *SCORERS}
    assert completion.DTYPES == DTYPES
    assert completion.QUANTIZATIONS == QUANTIZATIONS
    assert ("auto", *PROPOSERS) == completion.PROPOSERS


def test_lists_complete_their_last_word():
    complete = completion.list_of("full", "select")
    assert complete("full,s") == ["full,select"]
    assert complete("full,") == ["full,select"]
    assert complete("") == ["full", "select"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("specprefill ask a.pdf Who --mode s", "select"),
        ("specprefill ask a.pdf Who --scorer lex", "lexical"),
        ("specprefill ask a.pdf Who --pair qwen3-8", "qwen3-8b"),
        ("specprefill pairs show ti", "tiny"),
        ("specprefill config set max", "max_new_tokens"),
        ("specprefill evaluate q.jsonl --modes full,se", "full,select"),
        ("specprefill do", "doctor"),
    ],
)
def test_the_shell_gets_names_without_torch(line, expected):
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
