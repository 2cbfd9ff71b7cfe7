"""Install commands name the packages, for this interpreter."""

import shlex
import sys

from specprefill_cli.installation import pip_command


def test_the_command_names_this_interpreter_and_survives_a_shell(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my tools/python")
    command = pip_command("--upgrade", "ray")
    assert shlex.split(command) == ["/my tools/python", "-m", "pip", "install", "--upgrade", "ray"]
