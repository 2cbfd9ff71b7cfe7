"""Texts kept on disk, `specprefill cache`, and the shortlist of many documents."""

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from specprefill_cli.answering.session import Session
from specprefill_cli.caches import DiskCache
from specprefill_cli.documents import collect
from specprefill_cli.documents.collect import read_collection
from specprefill_cli.documents.document import Collection, Document, Page, one_page_document
from specprefill_cli.documents.language import WordForms
from specprefill_cli.models.encoder import Encoder
from specprefill_cli.prefill.bm25 import word_index
from specprefill_cli.prefill.scorers.meaning import embedding_importance
from specprefill_cli.prefill.shortlist import characters_read, pack, shortlist, unpack
from specprefill_cli.record import Citation
from specprefill_cli.settings import Settings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    monkeypatch.setenv("SPECPREFILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPECPREFILL_MODELS", str(tmp_path / "models"))
    return DiskCache()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder docs/ of three pages; `a.html` has a warning."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    for name, body in (("a", b"\xc3\xb6" * 4 + b"\xff"), ("b", b"two"), ("c", b"three")):
        Path(f"docs/{name}.html").write_bytes(b"<html><body>" + body)
    return tmp_path / "docs"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    read = collect.read_document
    monkeypatch.setattr(
        collect, "read_document", lambda data, name, **options: names.append(name) or read(data, name, **options)
    )
    return names


def test_only_changed_files_are_read_again(folder: Path, parsed: list[str], cache: DiskCache) -> None:
    first, steps = read_collection(["docs"], keep=True), []
    assert parsed == ["docs/a.html", "docs/b.html", "docs/c.html"]
    Path("docs/b.html").write_text("<html><body>four", encoding="utf-8")
    Path("docs/a.html").rename("docs/d.html")
    again = read_collection(["docs"], keep=True, step=steps.append)
    assert parsed[3:] == ["docs/b.html"]
    assert steps[0] == "reading file 1 of 3: docs/b.html"
    assert [document.text for document in again.documents] == ["four", "three", "öööö\ufffd"]
    assert again.documents[2].warnings == first.documents[0].warnings != ()
    assert again.documents[2].pages == first.documents[0].pages


@pytest.mark.parametrize("damage", ["garbage", "cut", "value", "folder", "locked"])
def test_a_cache_that_fails_costs_only_time(folder: Path, cache: DiskCache, damage: str, monkeypatch) -> None:
    expected = read_collection(["docs"], keep=True).documents
    monkeypatch.setattr("specprefill_cli.caches.PATIENCE", 0.01)
    database = sqlite3.connect(cache.path)
    if damage == "value":
        database.execute("UPDATE entries SET value = substr(value, 3)")
        database.commit()
    elif damage == "locked":
        database.execute("BEGIN EXCLUSIVE")
    elif damage == "folder":
        cache.path.unlink()
        cache.path.mkdir()
    else:
        content = cache.path.read_bytes()
        cache.path.write_bytes(b"garbage" * 999 if damage == "garbage" else content[: len(content) // 2])
    for _ in range(2):
        assert read_collection(["docs"], keep=True).documents == expected
    database.close()


def test_the_least_recently_used_make_room(cache: DiskCache) -> None:
    small = DiskCache(limit_bytes=20_000)
    for number in range(60):
        small.store(f"key {number}", np.random.default_rng(number).bytes(1000), f"file {number}")
        small.run("UPDATE entries SET used = ? WHERE key = ?", float(number), f"key {number}")
    assert sum(entry.size for entry in small.entries()) <= 22_000
    assert small.find("key 59") is not None
    assert small.find("key 0") is None


def test_two_processes_write_at_once(cache: DiskCache) -> None:
    code = (
        "import sys; from specprefill_cli.caches import DiskCache; cache = DiskCache()\n"
        "for n in range(200): cache.store(f'{sys.argv[1]} {n}', b'x', 's'); assert cache.find(f'{sys.argv[1]} {n}') == b'x'"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    assert cache.run("SELECT COUNT(*) FROM entries") == [(400,)]


def test_the_cache_is_listed_and_removed(folder: Path, cache: DiskCache, call, call_json) -> None:
    read_collection(["docs"], keep=True)
    model = folder.parent / "models" / "small-1-plain-v2"
    model.mkdir(parents=True)
    (model / "conversion.json").write_text("{}")
    rows = call_json("cache")["kept"]
    assert [(row["kind"], row["source"], row["files"]) for row in rows] == [
        ("documents", str(folder), 3),
        ("model", "small-1-plain-v2", 1),
    ]
    assert all(row["bytes"] > 0 and row["last_used"] for row in rows)
    assert "small-1" not in call("cache", "--remove", "small-1-plain-v2")[1]
    call("cache", "--remove", "docs/a.html")
    assert len(cache.entries()) == 2
    assert "nothing is kept of it" in call("cache", "--remove", "other")[2]
    assert str(folder) not in call("cache", "--remove", "all")[1]


FARM = "The gate of the mill is dark green. " * 40
OTHERS = [f"Page {number} tells of rain, of bread and of the old road to the sea. " * 20 for number in range(30)]


def many(*texts: str, kept: bool = False) -> Collection:
    return Collection(tuple(one_page_document(f"{number}.txt", text) for number, text in enumerate(texts)), kept=kept)


@pytest.mark.parametrize("kept", [False, True])
def test_the_documents_with_the_questions_words_are_read(cache: DiskCache, kept: bool) -> None:
    collection = many(*OTHERS[:15], FARM, *OTHERS[15:], kept=kept)
    settings = Settings(shortlist=4000)
    assert characters_read(collection, settings) == 4000
    for _ in range(2):
        chosen = shortlist(collection, "What colour is the mill's gate?", settings)
        names = [document.name for document in chosen.documents]
        assert "15.txt" in names
        assert names == [f"{number}.txt" for number in chosen.numbers]
        (farm,) = chosen.in_whole([Citation("15.txt", 1, 0, 3, "The", names.index("15.txt"))])
        assert (farm.number, chosen.documents[chosen.part_number(farm)].name) == (15, "15.txt")
        assert len(chosen.text) <= 4000
        assert len(chosen.documents) + chosen.left_out == 31
    assert chosen.warnings[0].startswith(f"{chosen.left_out} of 31 documents were left out")
    assert bool(cache.entries()) is kept


@pytest.mark.parametrize(("question", "settings"), [
    ("What colour is the gate?", Settings(shortlist="off")),
    ("What colour is the gate?", Settings(shortlist=4000, mode="full")),
    ("What colour is the gate?", Settings(shortlist=10**6)),
    ("Summarise these documents", Settings(shortlist=4000)), ("Zyzzyva?", Settings(shortlist=4000)),
])  # fmt: skip
def test_all_documents_are_read_where_nothing_else_is_sure(cache: DiskCache, question: str, settings: Settings) -> None:
    collection = many(FARM, *OTHERS)
    assert shortlist(collection, question, settings) is collection
    assert (characters_read(collection, settings) is None) == (settings != Settings(shortlist=4000))


def test_parts_of_documents_keep_their_places(cache: DiskCache) -> None:
    text = f"{OTHERS[0] * 4}\n\n{FARM}{OTHERS[1] * 4}"
    pages = (Page(1, 0, 4000), Page(2, 4000, len(text)))
    collection = Collection((Document("a.txt", text, pages, ("odd",)), *many(*OTHERS).documents))
    (part,) = shortlist(collection, "What colour is the mill's gate?", Settings(shortlist=5000)).documents
    assert "dark green" in part.text
    assert part.text == text[part.origin : part.origin + len(part.text)]
    assert (part.name, part.warnings, len(part.text) < 5200) == ("a.txt", ("odd",), True)
    assert part.pages_between(len(part.text) - 1, len(part.text)) == (2,)


def test_words_of_documents_survive_packing() -> None:
    forms, text = WordForms("de"), "Die Mühle mahlt. Das Tor der Mühle ist grün."
    index = word_index(text, np.array([0, 17]), forms)
    unpacked_forms, unpacked = unpack(pack(forms, index))
    assert unpacked_forms == forms
    for word in forms.question_words("Wie ist das Tor der Mühle?"):
        assert unpacked.frequency(word, forms).tolist() == index.frequency(word, forms).tolist()


def test_vectors_are_computed_once(cache: DiskCache, tiny_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    request = tiny_session.request(
        many(FARM, kept=True), "What colour is the gate?", Settings(scorer="embedding", mode="select")
    )
    first = embedding_importance(request)
    monkeypatch.setattr(Encoder, "document_vectors", None)
    assert torch.equal(embedding_importance(request), first)
    with pytest.raises(TypeError):
        embedding_importance(replace(request, collection=many(FARM)))


def test_commands_say_how_many_documents_were_left_out(cache: DiskCache, tmp_path: Path, call_json) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number, text in enumerate([*OTHERS, f"{'Rain. ' * 500}{FARM}"]):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    question = "What colour is the mill's gate?"
    for command, *options in (["ask", "--no-server"], ["plan"], ["passages", "--no-server", "--top", "1"]):
        shown = call_json(command, str(folder), question, "--shortlist", "4000", *options)
        assert shown["documents_left_out"] == 30
        assert "30 of 31 documents" in shown["warnings"][0]
    (passage,) = shown["passages"]
    assert passage["start"] >= 2000
    assert passage["document"].endswith("30.txt")
