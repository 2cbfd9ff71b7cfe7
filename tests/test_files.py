"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import check_can_write, make_folder, write_whole


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
def test_links_are_followed_and_devices_are_written_to(tmp_path):
    file, link = tmp_path / "real.toml", tmp_path / "link.toml"
    file.write_text("old")
    link.symlink_to(file)
    write_whole(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    write_whole(Path(os.devnull), "gone")
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="pipes with names as on Unix")
def test_a_pipe_with_a_name_is_written_to():
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")
    check_can_write(path, "--html")
    write_whole(path, "page")
    os.close(writer)
    with open(reader, "rb") as stream:
        assert stream.read() == b"page"


def test_unwritable_paths_are_refused_before_any_work(tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    file.write_text("old")
    check_can_write(file, "--html")
    # A file is replaced by one beside it, so that the folder matters even where the file can be written.
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    with pytest.raises(UsageError, match=r"--html .*: no permission to write there"):
        check_can_write(file, "--html")
    with pytest.raises(UsageError, match=r"--out .*: no permission to write there"):
        make_folder(tmp_path, "--out")
    with pytest.raises(UsageError, match=r"--out .*: cannot be made"):
        make_folder(file, "--out")
