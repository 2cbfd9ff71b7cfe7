"""Bodies of `POST /v1/ask` and `/v1/passages`: their fields, and the files that they name."""

import os

import pytest

from specprefill_cli.batching import rows
from specprefill_cli.engine.http import document_of
from specprefill_cli.errors import DocumentError, UsageError
from specprefill_cli.serving.body import parse_question, read_paths
from specprefill_cli.serving.control import HAS_UNIX_SOCKETS
from specprefill_cli.serving.guard import ApiError
from specprefill_cli.settings import Settings


def read_names(paths, folder, strict=False):
    return [
        document.name for document in read_paths(paths, str(folder), Settings(strict=strict, no_cache=True)).documents
    ]


def test_names_are_those_of_the_request(tmp_path):
    for name in ("a.txt", "b[1].txt"):
        (tmp_path / name).write_text("The gate is green.")
    assert read_names(["*.txt"], tmp_path) == ["a.txt", "b[1].txt"]
    whole = str(tmp_path / "a.txt")
    assert read_names(["b[1].txt", whole], tmp_path) == ["b[1].txt", whole]
    for name, words in (("c*", r"^c\*: no file"), ("", "not a file name"), ("https://a.org/a?b", "URLs are not read")):
        with pytest.raises(DocumentError, match=words):
            read_names([name], tmp_path)


@pytest.mark.parametrize(("fields", "words"), [
    ({"documents": {}}, "documents must be a list"), ({"document": {"text": "x"}}, "documents must be a list"),
    ({"top": 0}, "the request: top 0: must be at least 1"), ({"top": True}, "'True' is not a whole number"),
])  # fmt: skip
def test_wrong_fields_are_refused_by_name(fields, words):
    with pytest.raises((ApiError, UsageError), match=words):
        parse_question({"question": "Who?", **fields}, Settings(), False)


@pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="commands use no server")
def test_what_only_the_command_can_read_is_sent():
    reader, writer = os.pipe()
    os.write(writer, b"The gate")
    os.close(writer)
    assert document_of(f"/dev/fd/{reader}") == {"base64": "VGhlIGdhdGU=", "name": f"/dev/fd/{reader}"}
    os.close(reader)


def test_a_strict_request_skips_no_file(tmp_path):
    (tmp_path / "a.txt").write_text("The gate is green.")
    (tmp_path / "b.pdf").write_bytes(b"no PDF")
    assert read_names(["."], tmp_path) == ["a.txt"]
    with pytest.raises(DocumentError, match=r"b\.pdf"):
        read_names(["."], tmp_path, strict=True)


def test_files_are_read_once_until_they_change(tmp_path, monkeypatch):
    read, real = [], rows.read_collection
    monkeypatch.setattr(
        rows, "read_collection", lambda *arguments, **options: read.append(1) or real(*arguments, **options)
    )
    file = tmp_path / "a.txt"
    for text, times in (("The gate is green.", 1), ("The gate is not green.", 2)):
        file.write_text(text)
        for _ in range(2):
            assert text in read_paths(["a.txt"], str(tmp_path), Settings(no_cache=True)).text
        assert len(read) == times
