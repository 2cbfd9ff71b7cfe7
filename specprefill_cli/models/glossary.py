"""Word-by-word English of texts in other languages, so that the English sentence encoder and English words can compare them.

A glossary gives the English words of a word's form (`documents.language`). The order of words stays that of the text: the
encoder needs the words more than their order.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from specprefill_cli.caches import ByteCache
from specprefill_cli.documents.document import SEPARATOR, Collection
from specprefill_cli.documents.language import COMPOUNDING, ENGLISH, UNSPACED_LETTER, WORD, normaliser
from specprefill_cli.files import GLOSSARY_FOLDER

SUFFIX = ".tsv.xz"
# Characters of the longest entry in a script without spaces, and of the shortest part of a compound.
LONGEST_ENTRY, SHORTEST_PART = 8, 4
# Letters that a form may lose at its end before it is looked up again, and letters that must remain.
LOST, REMAINING = 2, 4
# Punctuation of scripts without spaces, and ours.
PUNCTUATION = str.maketrans("\u3002\uff0c\u3001\uff1b\uff1a\uff01\uff1f\uff08\uff09", ".,,;:!?()")


@dataclass(frozen=True, kw_only=True)
class Gloss:
    """English for a text.

    text: the English words; places: [len(text)] the character of the source that each of its characters stands for, ascending
    """

    text: str
    places: np.ndarray

    @property
    def nbytes(self) -> int:
        return len(self.text) + self.places.nbytes

    def starts(self, characters: np.ndarray) -> np.ndarray:
        """Where the English of the source from `characters` [n] on begins: [n]."""
        return np.searchsorted(self.places, characters)


GLOSSES: ByteCache[Gloss] = ByteCache(2**26, lambda gloss: gloss.nbytes)


def gloss_documents(collection: Collection) -> Gloss | None:
    """The English of all documents, each from its own language, kept for the next question; None where all stay as they are."""
    languages = collection.languages
    if not any(map(has_glossary, languages)):
        return None

    def build() -> Gloss:
        pieces, places = [], []
        for document, language, start in zip(collection.documents, languages, collection.starts, strict=True):
            english = gloss(document.text + SEPARATOR, language)
            pieces.append(english.text)
            places.append(start + english.places)
        return Gloss(text="".join(pieces), places=np.concatenate(places))

    return GLOSSES.find_or((collection.text, languages), build)


def gloss(text: str, language: str) -> Gloss:
    """The English of a text; the text as it is in English and in languages without a glossary."""
    if not has_glossary(language):
        return Gloss(text=text, places=np.arange(len(text)))
    glossed_pieces = list(glossed(text, language))
    lengths = [len(english) for _, english in glossed_pieces]
    places = np.repeat(np.array([place for place, _ in glossed_pieces], dtype=np.int64), lengths)
    return Gloss(text="".join(english for _, english in glossed_pieces), places=places)


def has_glossary(language: str) -> bool:
    """Whether a glossary of a language is bundled."""
    return language != ENGLISH and (GLOSSARY_FOLDER / f"{language}{SUFFIX}").is_file()


@cache
def load_glossary(language: str) -> Mapping[str, str]:
    """English by form."""
    lines = lzma.decompress((GLOSSARY_FOLDER / f"{language}{SUFFIX}").read_bytes()).decode()
    return dict(line.split("\t", 1) for line in lines.splitlines())


def glossed(text: str, language: str) -> Iterator[tuple[int, str]]:
    """Yield where each piece of a text begins, and its English: words, and what stands between them as it is."""
    done = 0
    for match in WORD.finditer(text):
        place = match.start()
        if place < done:
            continue
        yield done, text[done:place].translate(PUNCTUATION)
        if UNSPACED_LETTER.match(match.group()):
            length, english = longest_entry(text, place, language)
            yield place, f"{english} " if english else ""
            done = place + length
        else:
            yield place, english_of(match.group(), language)
            done = match.end()
    yield done, text[done:].translate(PUNCTUATION)


def longest_entry(text: str, place: int, language: str) -> tuple[int, str]:
    """Length and English of the longest entry that begins at a place; of a single character where there is none."""
    entries = load_glossary(language)
    for length in range(LONGEST_ENTRY, 0, -1):
        english = entries.get(text[place : place + length])
        if english is not None:
            return length, english
    return 1, ""


def english_of(word: str, language: str) -> str:
    """The English of a word, of its parts, or of a form with the same beginning; else the word as it is."""
    entries, lower = load_glossary(language), word.lower()
    form = normaliser(language)(lower)
    if not form:
        # A word without a subject has an entry where questions need it.
        return entries.get(lower, "")
    english = entries.get(form)
    if english is None and language in COMPOUNDING:
        english = english_of_parts(form, language, entries)
    for lost in range(1, LOST + 1):
        if english is None and len(form) - lost >= REMAINING:
            english = entries.get(form[:-lost])
    return english or word


def english_of_parts(form: str, language: str, entries: Mapping[str, str]) -> str | None:
    """The English of a compound's two parts, divided where the second is longest; None where none is known."""
    for cut in range(SHORTEST_PART, len(form) - SHORTEST_PART + 1):
        second = entries.get(form[cut:])
        first = entries.get(form[:cut]) or entries.get(normaliser(language)(form[:cut].removesuffix("s")))
        if first and second:
            return f"{first} {second}"
    return None
