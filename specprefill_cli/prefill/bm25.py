"""The words of a question in the passages of a document: Okapi BM25 by stems, and rare identifiers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from specprefill_cli.caches import ByteCache
from specprefill_cli.documents.language import ENGLISH, WORD, WordForms, language_of, normaliser
from specprefill_cli.documents.sentences import sentences_around

K1, B = 1.2, 0.75
# Weight of a compound with a word, or of a part of it, against 1 for the word.
RELATED = 0.5
SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+")
# Parts of an identifier are joined by one of these: `AB-1234/7`, `10.0.0.7`, `8,450`.
TOKEN = re.compile(r"\w+(?:[-./:,@#]\w+)*")
# A number and what it counts or the month that it is a day of.
COUNTED = re.compile(r"\b\d+ [^\W\d_]{3,}")
SHORTEST_NUMBER = 3
# An identifier in more places says little about where the answer is.
MOST_PLACES = 8


def bm25(question: str, indexes: Sequence[tuple[WordForms, "WordIndex"]], known: str = "") -> np.ndarray:
    """Okapi BM25 (Robertson and Zaragoza 2009) [n] of the passages of texts, each with word forms and word index.

    known: a text whose words do not count
    """
    lengths = np.concatenate([index.lengths for _, index in indexes])
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
    scores = np.zeros(len(lengths))
    all_forms = {forms for forms, _ in indexes}
    words = {forms: {*forms.question_words(question)} - {*forms.question_words(known)} for forms in all_forms}
    for word in sorted(set().union(*words.values())):
        places = ((part, forms, word in words[forms]) for forms, part in indexes)
        counts = [part.frequency(word, forms) if used else np.zeros(len(part.lengths)) for part, forms, used in places]
        frequency = np.concatenate(counts)
        scores += rarity(frequency) * frequency * (K1 + 1) / (frequency + norm)
    return scores


def rarity(frequency: np.ndarray) -> float:
    """The inverse document frequency of a word, from its frequency in each passage [n]."""
    containing = np.count_nonzero(frequency)
    return float(np.log1p((len(frequency) - containing + 0.5) / (containing + 0.5)))


@dataclass(frozen=True, kw_only=True)
class WordIndex:
    """The words of a text's passages; lengths: [n] words of each passage.

    passages: [words] the passage of every occurrence, by word; numbers: of words; edges: of each word in it
    """

    lengths: np.ndarray
    passages: np.ndarray
    numbers: dict[str, int]
    edges: np.ndarray

    def frequency(self, word: str, forms: WordForms) -> np.ndarray:
        """How often a word occurs in each passage [n]; its compounds and parts count less."""
        related = forms.related(word, self.numbers)
        return self.occurrences(word) + RELATED * sum(map(self.occurrences, related), np.zeros(len(self.lengths)))

    def occurrences(self, word: str) -> np.ndarray:
        """How often a word occurs in each passage [n] in the same form."""
        number = self.numbers.get(word)
        places = self.passages[slice(*self.edges[number : number + 2])] if number is not None else self.passages[:0]
        return np.bincount(places, minlength=len(self.lengths)).astype(float)


# A word in `numbers` takes some 100 bytes.
INDEXES: ByteCache[WordIndex] = ByteCache(
    2**27, lambda index: index.lengths.nbytes + index.passages.nbytes + 100 * len(index.numbers)
)


def word_index(text: str, starts: np.ndarray, forms: WordForms) -> WordIndex:
    """The words of a text's passages, kept for the next question about it.

    starts: [n] character at which each passage begins, ascending; a word belongs to that in which it begins
    """
    starts = np.ascontiguousarray(starts, dtype=np.int64)

    def build() -> WordIndex:
        numbers: dict[str, int] = {}
        places, words = [], []
        for place, form in forms.words(text, int(starts[0])):
            places.append(place)
            words.append(numbers.setdefault(form, len(numbers)))
        occurrences = np.array(words, dtype=np.int64)
        passages = np.searchsorted(starts, np.array(places, dtype=np.int64), side="right") - 1
        return WordIndex(
            lengths=np.bincount(passages, minlength=len(starts)).astype(float),
            passages=passages[np.argsort(occurrences, kind="stable")],
            numbers=numbers,
            edges=np.concatenate([[0], np.bincount(occurrences, minlength=len(numbers)).cumsum()]),
        )

    return INDEXES.find_or((text, starts.tobytes(), forms), build)


def word_scores(question: str, text: str, starts: np.ndarray, known: str = "") -> np.ndarray:
    """BM25 of passages [n] of a text, from `starts` [n] on, by the stems of the question's content words but those of `known`."""
    forms = WordForms(language_of(text))
    # Without content words all words count, as they are.
    if not forms.question_words(question):
        forms = WordForms("")
    return bm25(question, [(forms, word_index(text, starts, forms))], known)


def coverage(question: str, text: str, starts: np.ndarray) -> float:
    """The largest share of a question's content words, by rarity, near a passage: 0 to 1."""
    forms = WordForms(language_of(text))
    index = word_index(text, starts, forms)
    total, covered = 0.0, np.zeros(len(starts))
    for word in forms.question_words(question):
        frequency = index.frequency(word, forms)
        weight = rarity(frequency)
        padded = np.pad(frequency, 1)
        covered += weight * ((padded[:-2] + frequency + padded[2:]) > 0)
        total += weight
    return float(covered.max(initial=0.0) / total) if total else 0.0


def absent_names(question: str, text: str, starts: np.ndarray) -> float:
    """The share of a question's names and numbers that a text lacks; 0 without any, and outside English."""
    # Only in English is every word with a capital inside a sentence a name.
    if language_of(text) != ENGLISH:
        return 0.0
    index = word_index(text, starts, WordForms(ENGLISH))
    # Sentences before the last tell of the asker's situation.
    first, *following = WORD.findall(SENTENCE_BREAK.split(question.strip())[-1]) or [""]
    words = [word for word in following if word[0].isupper()]
    words += [word for word in (first, *following) if any(map(str.isdigit, word))]
    names = set(map(normaliser(ENGLISH), words)) - {""}
    return sum(name not in index.numbers for name in names) / max(1, len(names))


def is_identifier(token: str) -> bool:
    """Whether a token is a code, a long number, or a name as in code: with `_` or capitals inside."""
    if any(character.isdigit() for character in token):
        return len(token) >= SHORTEST_NUMBER or any(map(str.isalpha, token))
    return "_" in token or token[1:] != token[1:].lower()


def rare_places(question: str, text: str) -> list[int]:
    """The characters of a text at which rare identifiers of a question begin, in its spelling or, without one, in any case."""
    places: list[int] = []
    for token in sorted({*filter(is_identifier, TOKEN.findall(question)), *COUNTED.findall(question)}):
        pattern = rf"(?<!\w)(?<!\d[.,:]){re.escape(token)}(?!\w|[.,:]\d)"
        for flags in (0, re.IGNORECASE):
            occurrences = [match.start() for match in islice(re.finditer(pattern, text, flags), MOST_PLACES + 1)]
            if occurrences:
                break
        places += occurrences if len(occurrences) <= MOST_PLACES else []
    return sorted(places)


def hold_rare_identifier(question: str, text: str, starts: np.ndarray) -> np.ndarray:
    """Whether each passage [n] has part of a sentence or row with a rare identifier of the question."""
    holds = np.zeros(len(starts), dtype=bool)
    for place in rare_places(question, text):
        begin, end = sentences_around(text, place, place + 1)
        first, last = np.searchsorted(starts, (begin, end - 1), side="right") - 1
        holds[max(0, first) : last + 1] = True
    return holds
