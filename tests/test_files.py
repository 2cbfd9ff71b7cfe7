"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import write_whole


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "a.toml"
    write_whole(file, "old\n")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SpecprefillError, match=r"a.toml: cannot be written \(No space left"):
        write_whole(file, "new\n")
    assert file.read_text() == "old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


@pytest.mark.skipif(os.name == "nt", reason="links and devices as on Unix")
def test_links_are_followed_and_devices_written_to(tmp_path):
    file, link = tmp_path / "real.toml", tmp_path / "link.toml"
    file.write_text("old")
    link.symlink_to(file)
    write_whole(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    write_whole(Path(os.devnull), "gone")
    assert not Path(os.devnull).is_file()
