"""Commands with documents that cannot be read."""

import json
import os
import sys
from pathlib import Path

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


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names of any bytes")
def test_names_are_real_in_json_and_safe_on_the_terminal(call, folder):
    names = [os.fsdecode(b"caf\xe9\n\x1b[31m.txt"), "größe.txt"]
    for name, fee in zip(names, ("12", "19"), strict=True):
        Path(name).write_bytes(f"The ferry {fee} costs {fee} euros in café.".encode("cp1252"))
    arguments = (*names, "What does the ferry cost?", "--mode", "full", "--max-new-tokens", "8")
    code, out, err = call("ask", *arguments, "--json", "--html", "page.html")
    assert code == 0, err
    record = json.loads(out)
    assert out.isascii()
    assert {touched["document"] for span in record["spans"] for touched in span["documents"]} == set(names)
    assert record["citations"]
    assert {citation["document"] for citation in record["citations"]} <= set(names)
    assert all(warning.isprintable() for warning in record["warnings"])
    assert record["warnings"][0].startswith(r"caf\udce9\n\x1b[31m.txt: not UTF-8")
    assert r"caf\udce9" in Path("page.html").read_text(encoding="utf-8")
    _, _, err = call("ask", *arguments)
    assert "\x1b" not in err
    assert r"caf\udce9\n\x1b[31m.txt p. 1" in err
    _, out, _ = call("passages", *names, "What does the ferry cost?", "--scorer", "lexical", "--top", "2")
    assert r"[caf\udce9\n\x1b[31m.txt, page 1]" in out
