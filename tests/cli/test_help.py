"""`--help`, docs/reference.md, and the start of the program: its imports, and how its threads wait."""

import os
import re
import runpy
from pathlib import Path

import pytest
import typer

import specprefill_cli
from specprefill_cli.__main__ import command_line
from specprefill_cli.models.machine.process import BOUNDED_SPIN, WAIT_SETTINGS
from tests.helpers.programs import run_main
from tests.helpers.samples import HANDBOOK

OURS = ("ask", "compare", "passages", "plan", "doctor", "config show")
# Optional imports of transformers, and imports of other readers and reports.
OPTIONAL = set("torchvision scipy sklearn pandas matplotlib openpyxl docx pptx tiktoken".split())
ROOT = Path(specprefill_cli.__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
reference = runpy.run_path(str(ROOT / "docs" / "build_reference.py"))["reference"]


def every_command(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*path, name))


COMMANDS = dict(every_command(typer.main.get_command(command_line())))


@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_every_help_has_an_example_of_its_command(path):
    command = COMMANDS[path]
    text = f"{command.help} {command.epilog or ''}"
    assert " ".join(("specprefill", *path)) in text


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


def test_the_help_of_ask_is_short(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    _, out, _ = call("ask", "--help")
    assert len(re.findall(r"^│ --", out, re.MULTILINE)) <= 25
    assert len(out.splitlines()) <= 100
    assert "--look-ahead" in call("bench", "prefill", "--help")[1]


@pytest.mark.parametrize("name", OURS)
def test_every_option_that_takes_a_value_shows_its_default(name):
    parameters = COMMANDS[tuple(name.split())].params
    options = [parameter for parameter in parameters if parameter.param_type_name == "option" and not parameter.is_flag]
    assert [option.name for option in options if option.default is None and not option.show_default] == []
    assert [option.name for option in options if option.default is None and option.show_default is True] == []


def test_a_value_equal_to_the_default_wins_over_the_environment(call_json, monkeypatch):
    monkeypatch.setenv("SPECPREFILL_PAIR", "qwen3-8b")
    assert "pair tiny" in [check["name"] for check in call_json("doctor", "--pair", "tiny")["checks"]]


def test_the_reference_is_up_to_date():
    command = "python docs/build_reference.py > docs/reference.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), f"stale; run `{command}`"


def test_a_question_runs_through_the_modules_of_the_guide_and_imports_no_optional_ones():
    done = run_main("ask", HANDBOOK, "When does the canteen open?", "--max-new-tokens", "4")
    guide = (PAGE.parent / "guide.md").read_text(encoding="utf-8")
    drawing = guide.split("One `ask` from the command line")[1].split("```")[1]
    drawn = {f"specprefill_cli.{name.replace('/', '.')}" for name in re.findall(r"([a-z_0-9/]+)\.py", drawing)}
    assert len(drawn) > 12
    assert {"transformers.models.llama.modeling_llama", *drawn} <= done.modules
    assert not OPTIONAL & done.modules


def test_help_imports_nothing_heavy():
    done = run_main("--help")
    assert "ask" in done.out
    assert not {"torch", "transformers", "tokenizers", "numpy", "pypdf", "bs4", "accelerate"} & done.modules


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, BOUNDED_SPIN), ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
])  # fmt: skip
def test_idle_threads_spin_briefly_unless_the_user_says_otherwise(settings, expected):
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_SETTINGS} | settings
    done = run_main("config", "show", environment=environment)
    assert {name: value for name, value in done.environment.items() if name in WAIT_SETTINGS} == expected
