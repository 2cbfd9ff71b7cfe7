"""Install commands name the packages of an extra, for this interpreter."""

import shlex
import sys

import pytest

from specprefill_cli import installation
from specprefill_cli.installation import install_command, pip_command

REQUIREMENTS = [
    "no-such-core>=1",
    "pytest>=1",
    "no-such-office<4,>=3.1; extra == 'office'",
    "rich>=99; extra == 'office'",
    "no-such-peer; extra == 'peer'",
]


@pytest.mark.parametrize(
    ("extra", "packages"),
    [("", ["no-such-core>=1", "pytest>=1"]), ("office", ["no-such-office<4,>=3.1", "rich>=99"])],
)
def test_the_command_names_the_packages_of_an_extra(monkeypatch, extra, packages):
    monkeypatch.setattr(installation, "requires", lambda _name: REQUIREMENTS)
    assert shlex.split(install_command(extra))[-len(packages) - 1 :] == ["install", *packages]


def test_a_copy_that_was_never_installed_is_a_checkout(monkeypatch):
    def absent(_name):
        raise installation.PackageNotFoundError

    monkeypatch.setattr(installation, "requires", absent)
    assert shlex.split(install_command("office"))[-2:] == ["-e", f"{installation.CHECKOUT}[office]"]


def test_the_command_names_this_interpreter_and_survives_a_shell(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my tools/python")
    command = pip_command("-e", "/a folder[office]")
    assert shlex.split(command) == ["/my tools/python", "-m", "pip", "install", "-e", "/a folder[office]"]
