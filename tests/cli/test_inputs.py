"""What commands do about documents that cannot be read."""

import json

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory: docs/{good.txt, bad.pdf}."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.txt").write_text("The ferry costs 12 euros.")
    (tmp_path / "docs" / "bad.pdf").write_text("no PDF")
    return tmp_path


def test_a_bad_file_of_a_folder_is_a_warning_and_with_strict_an_error(call, folder):
    ask = ("ask", "docs", "What does the ferry cost?", "--json", "--max-new-tokens", "2")
    code, out, err = call(*ask)
    assert code == 0, err
    (warning,) = (text for text in json.loads(out)["warnings"] if "bad.pdf" in text)
    assert warning.startswith("skipped docs/bad.pdf: not a .pdf file")
    code, out, err = call(*ask, "--strict")
    assert (code, out) == (1, "")
    assert "docs/bad.pdf: not a .pdf file" in err


def test_strict_holds_for_rows_of_a_batch(call, folder):
    (folder / "rows.jsonl").write_text(json.dumps({"question": "What does it cost?", "documents": ["docs"]}))
    code, out, _ = call("batch", "rows.jsonl", "--strict", "--max-new-tokens", "2")
    assert code == 3
    assert "docs/bad.pdf: not a .pdf file" in json.loads(out)["error"]["message"]
