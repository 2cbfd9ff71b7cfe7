"""What the lab's commands refuse before any model is loaded."""

import os
from pathlib import Path

import pytest

from specprefill_cli.errors import UsageError
from specprefill_cli.lab.commands.options import make_folder, refuse_ranks


def test_rejects_ranks_for_single_process_commands():
    refuse_ranks(1, "calibrate")
    with pytest.raises(UsageError, match="calibrate runs in one process"):
        refuse_ranks(2, "calibrate")


def test_rejects_folders_that_cannot_be_made_or_written_to(tmp_path, monkeypatch):
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    with pytest.raises(UsageError, match=r"--out .*: cannot be made"):
        make_folder(file, "--out")
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    with pytest.raises(UsageError, match=r"--out .*: no permission to write there"):
        make_folder(tmp_path, "--out")
