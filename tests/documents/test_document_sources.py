"""Files, folders, patterns and standard input."""

import io
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from specprefill_cli.documents import collect
from specprefill_cli.documents.collect import expand_source, read_collection, read_documents
from specprefill_cli.errors import DocumentError, UsageError
from tests.helpers.document_files import make_pdf


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: docs/{a.txt, B.MD, notes.bin, .hidden.txt, sub/c.txt, .git/d.txt, z.txt} and empty/."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "B.MD", "notes.bin", ".hidden.txt", "sub/c.txt", ".git/d.txt", "z.txt"):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")
    (tmp_path / "empty").mkdir()
    return tmp_path


DOCUMENTS = ["docs/B.MD", "docs/a.txt", "docs/sub/c.txt", "docs/z.txt"]


def names(*sources: str) -> list[str]:
    return [document.name for document in read_collection(sources).documents]


def refusal(*sources: str) -> str:
    with pytest.raises(DocumentError) as caught:
        read_documents(sources)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_pattern_names_its_matches(folder: Path) -> None:
    assert names("docs/**/*.txt") == ["docs/a.txt", "docs/sub/c.txt", "docs/z.txt"]
    os.rename("docs/sub", "docs/[s*b]")
    assert names("docs/[s*b]/*.txt", "docs/[s*b]") == ["docs/[s*b]/c.txt"]
    assert refusal("docs/[s*b]/missing.txt").startswith("docs/[s*b]/missing.txt: cannot be read")
    assert names("docs/*") == ["docs/B.MD", "docs/a.txt", "docs/notes.bin", "docs/z.txt"]


def test_the_same_file_is_read_once(folder: Path) -> None:
    os.symlink("docs/a.txt", "link.txt")
    read = names("docs/a.txt", "docs", "docs/../docs/a.txt", "link.txt", "*.txt")
    assert read == ["docs/a.txt", "docs/B.MD", "docs/sub/c.txt", "docs/z.txt"]


def test_a_pattern_follows_no_links_to_folders(folder: Path) -> None:
    assert expand_source("**/s*/**/*.t?t")[0] == [Path("docs/sub/c.txt")]
    os.symlink("..", "docs/sub/up")
    os.symlink("../../docs", "docs/sub/again")
    texts = [Path("docs", *parts) for parts in (["a.txt"], ["sub", "c.txt"], ["z.txt"])]
    assert expand_source("docs/**/*.txt")[0] == texts
    assert expand_source("docs/**")[0] == sorted([Path("docs/B.MD"), Path("docs/notes.bin"), *texts])
    assert names("docs") == DOCUMENTS
    assert expand_source("do*/**t")[0] == [Path("docs/a.txt"), Path("docs/z.txt")]


def test_standard_input_is_read_once_up_to_the_limit_and_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(make_pdf(["Alpha"]))))
    (document,) = read_documents(["-", "-"])
    assert (document.name, document.text) == ("stdin", "Alpha")
    monkeypatch.setattr("sys.stdin", None)
    assert refusal("-") == "stdin: standard input is empty; pipe a document into it"
    monkeypatch.setattr(collect.LIMITS, "max_bytes", 10)
    stream = io.BytesIO(b"x" * 100)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
    assert refusal("-").startswith("stdin: larger than 10 bytes")
    assert stream.tell() == 11


@pytest.mark.parametrize(("source", "words"), [
    ("https://example.org/a.pdf", "https://example.org/a.pdf: URLs are not read; download the document"),
    ("HTTP://x", "URLs are not read"), ("missing.pdf", "missing.pdf: cannot be read: No such file"),
    ("missing*.pdf", "missing*.pdf: no file matches this pattern"),
    ("empty", "empty: no documents in this folder (known suffixes: .pdf, "), ("", "not a file name"),
    ("a\0b", "a\\x00b: not a file name"), ("x" * 5000, ": cannot be read: "),
])  # fmt: skip
def test_unusable_sources_are_refused(folder: Path, source: str, words: str) -> None:
    assert words in refusal(source)


def test_a_file_without_permission_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root ignores file modes.
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert refusal("docs/a.txt") == "docs/a.txt: cannot be read: Permission denied; check its name and its permissions"


def test_lock_files_are_ignored_and_skipped_kinds_are_reported(folder: Path) -> None:
    (folder / "docs" / "~$a.txt").write_bytes(b"\x00user")
    sources = ["docs", "docs/*.txt", "docs"]
    message = "1 file of another kind in docs was not read"
    collection = read_collection(sources)
    assert [document.name for document in collection.documents] == DOCUMENTS
    assert collection.warnings == [message]  # reported once
    with pytest.warns(UserWarning, match=re.escape(message)):
        assert read_documents(sources) == list(collection.documents)


def test_a_tilde_is_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder / "docs"))
    monkeypatch.setenv("USERPROFILE", str(folder / "docs"))
    assert read_documents("~/a.txt")[0].text == read_documents([Path("~/a.txt")])[0].text == "text of a.txt"
    with pytest.raises(UsageError, match="no documents"):
        read_documents([])


BAD = "skipped docs/bad.pdf: not a .pdf file: it is of another kind, or lost its beginning; rename it"


@pytest.mark.parametrize("source", ["docs", "docs/*.[ptM]*"])
def test_a_bad_file_of_a_folder_or_pattern_is_skipped_with_a_warning(folder: Path, source: str) -> None:
    Path("docs/bad.pdf").write_text("no PDF")
    collection = read_collection([source, source])
    assert [document.name for document in collection.documents][:2] == ["docs/B.MD", "docs/a.txt"]
    (warning,) = (warning for warning in collection.warnings if "bad" in warning)
    assert warning.startswith(BAD)
    with pytest.raises(DocumentError, match=r"docs/bad\.pdf: not a \.pdf file"):
        read_collection([source], strict=True)


def test_a_source_of_bad_files_fails_only_if_nothing_else_is_read(folder: Path) -> None:
    for name in ("one.pdf", "two.pdf"):
        Path("empty", name).write_text("no PDF")
    assert refusal("empty").startswith("empty/one.pdf: not a .pdf file")
    assert refusal("empty/*").endswith(" (and 1 more that cannot be read)")
    collection = read_collection(["empty", "docs/a.txt"])
    skipped = [warning.split(":")[0] for warning in collection.warnings]
    assert skipped == ["skipped empty/one.pdf", "skipped empty/two.pdf"]


@pytest.mark.skipif(os.name == "nt", reason="needs links and pipes")
def test_links_that_lead_nowhere_and_pipes_of_a_folder_are_reported(folder: Path) -> None:
    os.symlink("gone.txt", "docs/lost.txt")
    os.mkfifo("docs/pipe.txt")
    assert read_collection(["docs"]).warnings == [
        "2 files of other kinds in docs were not read",
        "skipped docs/lost.txt: cannot be read: No such file or directory; check its name and its permissions",
    ]


@pytest.mark.parametrize("name", ["notes [1]", ".kept", "a*b?"])
def test_a_folder_and_a_file_are_taken_by_their_names(folder: Path, name: str) -> None:
    Path(name).mkdir()
    Path(name, "[a].txt").write_text("text")
    assert names(name) == names(f"{name}/[a].txt") == [f"{name}/[a].txt"]
