"""The language of a text, by its script and its most frequent words, and the form in which its words are compared."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ENGLISH = "en"
# Scripts without spaces between words: Thai, Lao, Burmese and Khmer, then kana and Chinese characters.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
UNSPACED_LETTER = re.compile(rf"[{UNSPACED}]")
# Languages that write compounds as one word; letters of the shortest part, and of a word without stemmer.
COMPOUNDING, SHORTEST_PART, PREFIX = frozenset({"de", "nl", "sv", "da", "fi", "hu"}), 4, 5
# Characters of a text that tell its language; the share of its frequent words, and how many must differ.
SAMPLE, SHARE, DIFFERENT = 20_000, 0.12, 5
# Fewest words whose n-grams tell a language, and how much likelier, in nats, than as English the text must be: tables and code
# are hardly likelier in any.
FEWEST_WORDS, MARGIN = 20, 100


@lru_cache(16)
def language_of(text: str, otherwise: str = ENGLISH) -> str:
    """The language of a text as an ISO 639-1 code; `otherwise` where neither script, frequent words nor n-grams tell."""
    sample = text[:SAMPLE]
    scripts, letters = load_lists()["scripts"], sum(map(str.isalpha, sample))
    for language, script in scripts.items():
        in_script = len(re.findall(f"[{script}]", sample))
        # Japanese is written in kana and Chinese characters.
        if in_script and in_script >= letters * (0.1 if language == "ja" else 0.4):
            return language
    otherwise = ENGLISH if otherwise in scripts else otherwise
    # Single letters are words in many languages, and initials in all.
    words = Counter(word.lower() for word in WORD.findall(sample) if len(word) > 1)
    frequent = listed_words("frequent")
    counts = {language: sum(map(words.__getitem__, listed)) for language, listed in frequent.items()}
    best = max(counts, key=lambda language: (counts[language], language == otherwise))
    different = len(frequent[best] & words.keys())
    # A short question may hold a name or a word of another language.
    telling = different >= max(2, min(DIFFERENT, SHARE * words.total())) or 2 * counts[best] >= words.total()
    enough = counts[best] >= SHARE * words.total() and telling
    if enough or words.total() < FEWEST_WORDS:
        return best if enough else otherwise
    import py3langid

    scores = dict(py3langid.rank(sample))
    code = max(scores, key=scores.__getitem__)
    # Longer codes stand for no language, or for one that code is taken for.
    return code if len(code) == len(ENGLISH) and scores[code] > scores[ENGLISH] + MARGIN else otherwise


@cache
def load_lists() -> dict[str, dict[str, str]]:
    """By kind and language, `scripts` as letters that tell it, of which earlier ones win."""
    return json.loads(Path(__file__).with_name("languages.json").read_text(encoding="utf-8"))


@cache
def listed_words(kind: str) -> dict[str, frozenset[str]]:
    """The words by language that say nothing about a subject (`frequent`), or are `abbreviations`."""
    return {language: frozenset(words.split()) for language, words in load_lists()[kind].items()}


def says_not_found(answer: str) -> bool:
    """Whether an answer says, in a language that is known, that the documents hold none."""
    return answer.lower().startswith(tuple(load_lists()["not_found"].values()))


@dataclass(frozen=True)
class WordForms:
    """How the words of a document are compared; language "": as they are, those without a subject too."""

    language: str

    def words(self, text: str, start: int = 0) -> Iterator[tuple[int, str]]:
        """Yield where each word from character `start` on begins, and its form; empty without a subject."""
        normalise = normaliser(self.language)
        for match in WORD.finditer(text, start):
            place, word = match.start(), match.group()
            yield place, normalise(word)
            following = text[place + 1 : place + 2]
            if self.language != ENGLISH and UNSPACED_LETTER.match(word) and UNSPACED_LETTER.match(following):
                yield place, word + following

    def question_words(self, question: str) -> list[str]:
        """The different words of a question that count, sorted."""
        forms = {form for _, form in self.words(question)} - {""}
        language = language_of(question, self.language)
        if self.language in ("", language, ENGLISH):
            return sorted(forms)
        stops = listed_words("frequent").get(language, frozenset())
        return sorted(forms - {normaliser(self.language)(stop) for stop in stops})

    def related(self, word: str, vocabulary: Collection[str]) -> list[str]:
        """The words of a vocabulary that are compounds with a word, or parts of it."""
        if self.language not in COMPOUNDING or len(word) < SHORTEST_PART:
            return []
        forms = (form for form in vocabulary if len(form) >= SHORTEST_PART and form != word)
        return [x for x in forms if x.startswith(word) or x.endswith(word) or word.startswith(x) or word.endswith(x)]


@cache
def normaliser(language: str) -> Callable[[str], str]:
    """The function that gives the form of a word; see `WordForms`."""
    import snowballstemmer

    stops, name = listed_words("frequent").get(language, frozenset()), load_lists()["stemmers"].get(language)
    stemmer = snowballstemmer.stemmer(name) if name in snowballstemmer.algorithms() else None

    @lru_cache(2**16)
    def normalise(word: str) -> str:
        word = word.lower()
        if word in stops:
            return ""
        if language == ENGLISH and stemmer is not None:
            return stemmer.stemWord(word)
        if not language or UNSPACED_LETTER.match(word):
            return word
        # Stemmers need the accents; compared are words without them, `ß` as `ss`.
        stem = stemmer.stemWord(word) if stemmer is not None else word[:PREFIX]
        decomposed = unicodedata.normalize("NFKD", stem.casefold())
        return "".join(character for character in decomposed if not unicodedata.combining(character))

    return normalise
