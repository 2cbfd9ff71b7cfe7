"""Files are written atomically, and unwritable paths are rejected."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import check_can_write, write_whole
from specprefill_cli.lab.commands.options import make_folder


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    file = tmp_path / "a.toml"
    write_whole(file, "old\n")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(SpecprefillError, match=r"a.toml: cannot be written \(No space left"):
        write_whole(file, "new\n")
    assert file.read_text() == "old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


@pytest.mark.skipif(os.name == "nt", reason="needs Unix links and devices")
def test_writes_through_links_and_to_devices(tmp_path):
    file, link = tmp_path / "real.toml", tmp_path / "link.toml"
    file.write_text("old")
    link.symlink_to(file)
    write_whole(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    write_whole(Path(os.devnull), "gone")
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="needs /dev/fd")
def test_writes_to_named_pipe():
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")
    check_can_write(path, "--html")
    write_whole(path, "page")
    os.close(writer)
    with open(reader, "rb") as stream:
        assert stream.read() == b"page"


def test_rejects_unwritable_paths(tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    file.write_text("old")
    check_can_write(file, "--html")
    # The file is replaced by a temporary file in the same folder, so the folder must be writable too.
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    with pytest.raises(UsageError, match=r"--html .*: no permission to write there"):
        check_can_write(file, "--html")
    with pytest.raises(UsageError, match=r"--out .*: no permission to write there"):
        make_folder(tmp_path, "--out")
