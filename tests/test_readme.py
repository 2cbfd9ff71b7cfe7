"""The README is short, marks its test command for CI, and shows the real output of its first example."""

import re
import shlex
from pathlib import Path

import specprefill_cli

ROOT = Path(specprefill_cli.__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_at_most_8_kib():
    assert len(README.encode()) <= 8_192


def test_marks_the_test_command_for_ci():
    (block,) = re.findall(r"<!-- test command -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert " -m pytest" in block


def test_first_example_prints_the_shown_output(call, monkeypatch):
    command, expected_output = re.findall(r"```(?:sh|text)\n(.*?)```", README, re.DOTALL)[:2]
    answer, *table = expected_output.splitlines()
    arguments = shlex.split(command.split("specprefill", 1)[1])
    monkeypatch.chdir(ROOT)
    code, out, err = call(*arguments)
    assert (code, out.strip()) == (0, answer)
    labels = [re.split(r"\s{2,}", line.strip())[0] for line in table if not line.startswith(" ")]
    printed = [re.split(r"\s{2,}", line.strip())[0] for line in err.splitlines()]
    assert [label for label in printed if label in labels] == labels
    text = " ".join(err.split())
    for line in table:
        if line.startswith(" "):
            assert " ".join(line.removesuffix("...").split()) in text
