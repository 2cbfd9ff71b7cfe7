"""docs/reference.md agrees with the settings and commands."""

import runpy
from pathlib import Path

import specprefill_cli
from specprefill_cli.cli.main import command_line
from specprefill_cli.settings import SETTINGS

ROOT = Path(specprefill_cli.__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
reference = runpy.run_path(str(ROOT / "docs" / "build_reference.py"))["reference"]


def test_the_reference_is_up_to_date():
    command = "python docs/build_reference.py > docs/reference.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), f"stale; run `{command}`"


def test_the_reference_has_every_setting_and_command():
    page = reference()
    for setting in SETTINGS.values():
        assert f"| `{setting.name}` |" in page
        assert f"`{setting.variable}`" in page
    for info in (*command_line().registered_commands, *command_line().registered_groups):
        assert f"### specprefill {info.name}\n" in page


def test_the_reference_names_no_place_on_this_machine():
    page = reference()
    assert str(Path.home()) not in page
    assert str(ROOT) not in page
