"""The first stage for many documents: BM25 over their sections chooses the parts that the draft reads."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np

from specprefill_cli.caches import DiskCache
from specprefill_cli.documents.document import Collection, Document, Page
from specprefill_cli.documents.language import WordForms, language_of
from specprefill_cli.prefill.bm25 import WordIndex, bm25, word_index
from specprefill_cli.prefill.intent import is_about_everything
from specprefill_cli.record import PLANNED_MODE
from specprefill_cli.settings import AUTO, OFF, Settings

# Characters that the draft reads with `--shortlist auto` where there are more than so many, and those of a section.
AUTO_CHARACTERS, AUTO_FROM, SECTION = 60_000, 400_000, 1000
# Characters beside a part within which it begins or ends at a blank.
NEAR = 100
# Part of the key of a document's words: raise it when words are found or compared in another way.
VERSION = 2


def characters_read(collection: Collection, settings: Settings) -> int | None:
    """How many characters of several documents the draft reads for a question about one place; None: all."""
    limit, documents = settings.shortlist, collection.documents
    if limit == OFF or settings.mode not in (AUTO, PLANNED_MODE) or len(documents) < 2:
        return None
    limit, least = (AUTO_CHARACTERS, AUTO_FROM) if limit == AUTO else (limit, limit)
    return int(limit) if sum(len(document.text) for document in documents) > int(least) else None


def shortlist(collection: Collection, question: str, settings: Settings) -> Collection:
    """The parts of several documents that share most words with a question, of at most `settings.shortlist` characters.

    Everything is read for a question about everything or without a shared word, and in modes that read it all.
    """
    documents, limit = collection.documents, characters_read(collection, settings)
    if limit is None or is_about_everything(question):
        return collection
    with DiskCache() if collection.kept else nullcontext() as cache:
        indexes = [section_words(document, cache) for document in documents]
    counts = [len(index.lengths) for _, index in indexes]
    chosen = best_sections(bm25(question, indexes), counts, limit // SECTION)
    if not chosen.any():
        return collection
    by_document = np.split(chosen, np.cumsum(counts)[:-1])
    numbered = [(n, part) for n, sections in enumerate(by_document) for part in parts_of(documents[n], sections)]
    parts = tuple(replace(part, number=number) for number, part in numbered)
    left_out = sum(not sections.any() for sections in by_document)
    note = (
        f"{left_out:,} of {len(documents):,} documents were left out, and of the others what shares few words with the "
        "question; --shortlist off reads all"
    )
    return replace(collection, documents=parts, left_out=left_out, skipped=(note, *collection.skipped))


def best_sections(scores: np.ndarray, counts: Sequence[int], most: int) -> np.ndarray:
    """Which sections [n] to read, at most `most`: the best with their neighbours in the same document."""
    owners, chosen = np.repeat(np.arange(len(counts)), counts), np.zeros(len(scores), dtype=bool)
    for best in np.argsort(-scores, kind="stable"):
        near = np.arange(max(0, best - 1), min(best + 2, len(scores)))
        near = near[owners[near] == owners[best]]
        if not scores[best] or chosen.sum() + np.count_nonzero(~chosen[near]) > most:
            break
        chosen[near] = True
    return chosen


def parts_of(document: Document, chosen: np.ndarray) -> list[Document]:
    """The parts of a document with the chosen sections [n], each with its pages; the document itself if all are chosen."""
    if chosen.all():
        return [document]
    text, parts = document.text, list[Document]()
    for first, last in np.flatnonzero(np.diff(np.concatenate([[0], chosen, [0]]))).reshape(-1, 2) * SECTION:
        start = max(first - NEAR, text.rfind(" ", 0, first) + 1) if first else 0
        end = text.find(" ", last, last + NEAR)
        end = min(last, len(text)) if end < 0 else end
        pages = [page for page in document.pages if page.start < end and page.end > start]
        clipped = [Page(page.number, max(page.start - start, 0), min(page.end, end) - start) for page in pages]
        warned = () if parts else document.warnings
        parts.append(Document(document.name, text[start:end], tuple(clipped), warned, int(start)))
    return parts


def section_words(document: Document, cache: DiskCache | None) -> tuple[WordForms, WordIndex]:
    """The words of a document's sections, in the forms of its language; kept in the cache."""
    text = document.text
    key = f"words {VERSION} {SECTION} {hashlib.sha256(text.encode()).hexdigest()}"
    with suppress(TypeError, ValueError, IndexError):
        return unpack((cache and cache.find(key)) or b"")
    forms = WordForms(language_of(text))
    index = word_index(text, np.arange(0, max(1, len(text)), SECTION), forms)
    if cache is not None:
        cache.store(key, pack(forms, index), os.path.realpath(document.name))
    return forms, index


def pack(forms: WordForms, index: WordIndex) -> bytes:
    """An index as bytes: a line of JSON, then its numbers."""
    head = [forms.language, len(index.lengths), len(index.edges), list(index.numbers)]
    numbers = np.concatenate([index.lengths, index.edges, index.passages]).astype("<i4")
    return json.dumps(head).encode() + b"\n" + numbers.tobytes()


def unpack(packed: bytes) -> tuple[WordForms, WordIndex]:
    """The index that `pack` wrote. Raises TypeError, ValueError or IndexError for other bytes."""
    head, _, data = packed.partition(b"\n")
    language, sections, edges, words = json.loads(head)
    lengths, places, passages = np.split(np.frombuffer(data, "<i4"), [sections, sections + edges])
    numbers = dict(zip(words, range(len(words)), strict=True))
    return WordForms(language), WordIndex(lengths=lengths, passages=passages, numbers=numbers, edges=places)
