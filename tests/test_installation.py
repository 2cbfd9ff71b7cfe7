"""Install commands fit the installation: an editable checkout, a local wheel or folder, or neither."""

import json
import shlex
import sys
from importlib.metadata import PathDistribution

import pytest

from specprefill_cli import installation
from specprefill_cli.installation import install_arguments, install_command, pip_command

METADATA = """Metadata-Version: 2.1
Name: specprefill
Version: 1.0
Provides-Extra: office
Requires-Dist: no-such-core>=1
Requires-Dist: pytest>=1
Requires-Dist: no-such-office<4,>=3.1; extra == 'office'
Requires-Dist: pytest>=1; extra == 'office'
Requires-Dist: rich>=99; extra == 'office'
Requires-Dist: no-such-peer; extra == 'peer'
"""


@pytest.fixture
def installed(tmp_path):
    """The metadata of an installation from `origin`, the content of its direct_url.json."""

    def write(origin=None):
        folder = tmp_path / "specprefill-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(METADATA)
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        return PathDistribution(folder)

    return write


def test_an_editable_checkout_is_installed_again_with_the_extra(installed, tmp_path):
    source = tmp_path / "a checkout"
    source.mkdir()
    metadata = installed({"url": source.as_uri(), "dir_info": {"editable": True}})
    assert install_arguments(metadata, "office") == ["-e", f"{source}[office]"]
    assert install_arguments(metadata, "") == ["-e", str(source)]


@pytest.mark.parametrize("origin", [{"archive_info": {}}, {"dir_info": {}}])
def test_a_local_wheel_or_folder_is_installed_again_with_the_extra(installed, tmp_path, origin):
    source = tmp_path / "specprefill.whl"
    source.write_bytes(b"")
    assert install_arguments(installed({"url": source.as_uri(), **origin}), "office") == [f"{source}[office]"]


@pytest.mark.parametrize(
    "origin", [None, {"url": "file:///gone/specprefill.whl", "archive_info": {}}, {"url": "https://host/x.git"}]
)
def test_without_a_local_source_the_needed_packages_are_named(installed, origin):
    metadata = installed(origin)
    assert install_arguments(metadata, "office") == ["no-such-office<4,>=3.1", "pytest>=1", "rich>=99"]
    assert install_arguments(metadata, "") == ["no-such-core>=1", "pytest>=1"]


def test_a_copy_that_was_never_installed_is_a_checkout(monkeypatch):
    def absent(_name):
        raise installation.PackageNotFoundError

    monkeypatch.setattr(installation, "distribution", absent)
    assert shlex.split(install_command("office"))[-2:] == ["-e", f"{installation.CHECKOUT}[office]"]


def test_the_command_names_this_interpreter_and_survives_a_shell(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my tools/python")
    command = pip_command("-e", "/a folder[office]")
    assert shlex.split(command) == ["/my tools/python", "-m", "pip", "install", "-e", "/a folder[office]"]
