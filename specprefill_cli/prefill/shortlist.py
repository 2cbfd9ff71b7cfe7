"""The first stage for many documents: BM25 over their sections chooses those that the draft reads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np

from specprefill_cli.disk_cache import DiskCache
from specprefill_cli.documents.document import Collection, Document
from specprefill_cli.documents.language import WordForms, language_of
from specprefill_cli.prefill.bm25 import K1, B, WordIndex, rarity, word_index
from specprefill_cli.prefill.outline import is_about_everything
from specprefill_cli.record import PLANNED_MODE
from specprefill_cli.settings import AUTO, OFF, Settings

# Characters that the draft reads with `--shortlist auto`, and those of a section.
AUTO_CHARACTERS, SECTION = 60_000, 1000
# Part of the key of a document's words: raise it when words are found or compared in another way.
VERSION = 1


def shortlist(collection: Collection, question: str, settings: Settings) -> Collection:
    """The documents with the sections that share most words with a question, in order, and how many were left out.

    Those of at most `settings.shortlist` characters together, but at least one. All of them where that is off, where the
    question is about everything or shares no word with any document, and in modes that read the whole prompt.
    """
    limit = AUTO_CHARACTERS if settings.shortlist == AUTO else settings.shortlist
    sizes = [len(document.text) for document in collection.documents]
    is_whole = limit == OFF or settings.mode not in (AUTO, PLANNED_MODE) or is_about_everything(question)
    if is_whole or len(sizes) < 2 or sum(sizes) <= int(limit):
        return collection
    with DiskCache() if collection.kept else nullcontext() as cache:
        indexes = [section_words(document, cache) for document in collection.documents]
    scores = document_scores(indexes, question)
    if not scores.any():
        return collection
    room, chosen = int(limit), list[int]()
    for number in np.argsort(-scores, kind="stable").tolist():
        if sizes[number] <= room or not chosen:
            chosen.append(number)
            room -= sizes[number]
    documents = tuple(collection.documents[number] for number in sorted(chosen))
    return replace(collection, documents=documents, left_out=len(sizes) - len(chosen))


def document_scores(indexes: Sequence[tuple[WordForms, WordIndex]], question: str) -> np.ndarray:
    """BM25 of each document's best section for a question: [n]; rarities and lengths are those of all sections."""
    lengths = np.concatenate([index.lengths for _, index in indexes])
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
    scores = np.zeros(len(lengths))
    words = {forms: forms.question_words(question) for forms in {forms for forms, _ in indexes}}
    for word in sorted({word for found in words.values() for word in found}):
        frequency = np.concatenate(
            [
                index.frequency(word, forms) if word in words[forms] else np.zeros(len(index.lengths))
                for forms, index in indexes
            ]
        )
        scores += rarity(frequency) * frequency * (K1 + 1) / (frequency + norm)
    edges = np.cumsum([0, *(len(index.lengths) for _, index in indexes)])[:-1]
    return np.maximum.reduceat(scores, edges)


def section_words(document: Document, cache: DiskCache | None) -> tuple[WordForms, WordIndex]:
    """The words of a document's sections, in the forms of its language; kept in the cache."""
    text = document.text
    key = f"words {VERSION} {SECTION} {hashlib.sha256(text.encode()).hexdigest()}"
    with suppress(TypeError, ValueError, IndexError):
        return unpack((cache and cache.find(key)) or b"")
    forms = WordForms(language_of(text))
    index = word_index(text, np.arange(0, max(1, len(text)), SECTION), len(text), forms)
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
