"""Makes the bundled glossaries: the English of the most frequent forms of words of ten languages.

The folder of sources holds, under their own names, the files of the projects that the model card names: `freqdb`
(decentrade/FreqDB), `omw` (the tables of the Open Multilingual Wordnet), `frequency` (XX_50k.txt of
hermitdave/FrequencyWords), `cedict.txt.gz`, and `jamdict.db` (JMdict).
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from specprefill_cli.documents.language import listed_words, normaliser
from specprefill_cli.models.glossary import LONGEST_ENTRY, SUFFIX

# Entries of a glossary; English of an entry: alternatives, words of each.
ENTRIES, ALTERNATIVES, WORDS = 120_000, 2, 2
FREQDB = {"fr": "fra", "es": "spa", "it": "ita", "pt": "por", "nl": "nld", "zh": "cmn"}
WORDNETS = {code: three for code, three in {**FREQDB, "de": "deu", "ru": "rus", "pl": "pol"}.items() if code != "zh"}
PIVOTS = ("fr", "es", "it", "pt")
RARE = 10**6
# A vote. An alternative counts with at least this share of the best one's votes; later alternatives of a source count less.
VOTE, NEAR, LATER = 1_000, 0.5, 0.3
ASIDE, SEPARATOR = re.compile(r"\([^)]*\)|\[[^\]]*\]"), re.compile(r"[;,/]")
ARTICLE = re.compile(r"^(to|a|an|the|be) ")
ENGLISH_WORDS = re.compile(r"[a-z0-9' .-]+")
CEDICT = re.compile(r"(\S+) (\S+) \[.*?\] /(.*)/")
QUESTION_WORDS = Path(__file__).with_name("question_words.json")
Glosses = Mapping[str, Sequence[str]]


def english_words(text: str) -> list[str]:
    """The short alternatives of a dictionary's English."""
    parts = [ARTICLE.sub("", part.strip().lower()).strip() for part in SEPARATOR.split(ASIDE.sub(" ", text))]
    return list(
        dict.fromkeys(part for part in parts if len(part.split()) <= WORDS and ENGLISH_WORDS.fullmatch(part) and part)
    )


def table(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")


def best(votes: Counter[str]) -> list[str]:
    """The alternatives with most votes."""
    top = votes.most_common(ALTERNATIVES)
    return [word for word, count in top if count >= NEAR * top[0][1]]


class Sources:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.synsets: defaultdict[str, list[str]] = defaultdict(list)
        for synset, word in self.lemmas("wn-wikt-eng.tab"):
            if len(word.split()) <= WORDS:
                self.synsets[synset].append(word.lower())
        self.dictionaries = {code: self.freqdb(three) for code, three in FREQDB.items()}

    def lemmas(self, name: str) -> Iterator[tuple[str, str]]:
        path = self.folder / "omw" / name
        for line in table(path) if path.is_file() else ():
            fields = line.split("\t")
            if len(fields) == 3 and fields[1].endswith("lemma"):
                yield fields[0], fields[2].replace("_", " ")

    def freqdb(self, three: str) -> dict[str, list[str]]:
        """English by word, the most frequent word first."""
        words, english = (table(self.folder / "freqdb" / f"{three}{suffix}.txt") for suffix in ("", "eng"))
        return {word: english_words(text) for word, text in zip(words, english, strict=False) if word and text}

    def ranks(self, code: str) -> dict[str, int]:
        return {
            line.split()[0]: rank
            for rank, line in enumerate(table(self.folder / "frequency" / f"{code}_50k.txt"))
            if line
        }

    def wordnet(self, code: str) -> dict[str, Counter[str]]:
        """Votes for English words that share a word's meanings."""
        votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for name in (f"wn-wikt-{WORDNETS[code]}.tab", f"wn-data-{WORDNETS[code]}.tab" if code == "pl" else ""):
            for synset, word in self.lemmas(name) if name else ():
                for english in self.synsets[synset]:
                    votes[word.replace("\u0301", "")][english] += VOTE // len(self.synsets[synset])
        return votes

    def direct(self, code: str) -> Iterator[tuple[float, str, Sequence[str]]]:
        """Rank, word and English from a dictionary of the language; where it is silent, from the wordnet."""
        dictionary, ranks = self.dictionaries[code], self.ranks(code)
        yield from ((rank, word, english) for rank, (word, english) in enumerate(dictionary.items()))
        for word, votes in self.wordnet(code).items():
            if not dictionary.get(word):
                yield ranks.get(word, RARE), word, best(votes)

    def german(self) -> Iterator[tuple[float, str, Sequence[str]]]:
        """By way of languages whose dictionaries are here."""
        wordnet = self.wordnet("de")
        columns = {code: table(self.folder / "freqdb" / f"deu{FREQDB[code]}.txt") for code in PIVOTS}
        for rank, word in enumerate(table(self.folder / "freqdb" / "deu.txt")):
            votes = Counter({english: 3 * count // 2 for english, count in wordnet.get(word, Counter()).items()})
            for code, column in columns.items():
                for place, step in enumerate(
                    SEPARATOR.split(ASIDE.sub("", column[rank])) if rank < len(column) else ()
                ):
                    for number, english in enumerate(self.dictionaries[code].get(step.strip(), ())):
                        votes[english] += round(VOTE / (1 + LATER * place) / (1 + LATER * number))
            yield rank, word, best(votes) if votes else ()

    def russian(self) -> Iterator[tuple[float, str, Sequence[str]]]:
        """From dictionaries into Russian, read backwards."""
        votes, ranks = self.wordnet("ru"), self.ranks("ru")
        for code in ("pt", "nl"):
            words, column = (table(self.folder / "freqdb" / f"{FREQDB[code]}{suffix}.txt") for suffix in ("", "rus"))
            for word, text in zip(words, column, strict=False):
                for place, russian in enumerate(SEPARATOR.split(ASIDE.sub("", text))):
                    for number, english in enumerate(self.dictionaries[code].get(word, ())):
                        form = russian.strip().replace("\u0301", "")
                        votes.setdefault(form, Counter())[english] += round(
                            VOTE / (1 + LATER * place) / (1 + LATER * number)
                        )
        return ((ranks.get(word, RARE), word, best(counts)) for word, counts in votes.items() if counts)

    def polish(self) -> Iterator[tuple[float, str, Sequence[str]]]:
        ranks = self.ranks("pl")
        return ((ranks.get(word, RARE), word, best(votes)) for word, votes in self.wordnet("pl").items())

    def chinese(self) -> Iterator[tuple[float, str, Sequence[str]]]:
        ranks = self.ranks("zh_cn")
        entries: defaultdict[str, list[str]] = defaultdict(list)
        with gzip.open(self.folder / "cedict.txt.gz", "rt", encoding="utf-8") as lines:
            for match in filter(None, map(CEDICT.match, lines)):
                senses = [part for part in match[3].split("/") if not re.search("CL:|variant of|surname", part)]
                for word in (match[2], match[1]):
                    entries[word] += english_words(";".join(senses))
        order = {word: rank for rank, word in enumerate(self.dictionaries["zh"])}
        for word in order.keys() | entries.keys():
            rank = min(ranks.get(word, RARE), order.get(word, RARE))
            yield rank, word, entries.get(word) or self.dictionaries["zh"].get(word, [])

    def japanese(self) -> Iterator[tuple[float, str, Sequence[str]]]:
        """Words in Chinese characters, also without the endings in kana, and those that are written in kana alone."""
        base, ranks = sqlite3.connect(self.folder / "jamdict.db"), self.ranks("ja")
        senses = defaultdict(list)
        query = (
            "select s.idseq, g.text from SenseGloss g join Sense s on g.sid = s.ID where g.lang = 'eng' order by s.ID"
        )
        for number, text in base.execute(query):
            senses[number].append(text)
        marks = Counter(key for (key,) in base.execute("select kid from KJP"))
        written, stems = set(), []
        for key, number, word in base.execute("select ID, idseq, text from Kanji"):
            written.add(number)
            rank, english = ranks.get(word, RARE) - RARE * marks[key], english_words(";".join(senses[number][:6]))
            stems.append((float(rank), re.sub("[\u3040-\u309f]+$", "", word), english))
            yield rank, word, english
        for number, word in base.execute("select idseq, text from Kana"):
            if number not in written and len(word) > 1:
                yield ranks.get(word, RARE), word, english_words(";".join(senses[number][:6]))
        yield from ((rank + 0.5, word, english) for rank, word, english in stems if word)


def entries_of(code: str, ranked: Iterable[tuple[float, str, Sequence[str]]]) -> dict[str, Sequence[str]]:
    """English by form for the most frequent words; words without a subject are left to `QUESTION_WORDS`."""
    unspaced, stops, normalise = (
        code in ("zh", "ja"),
        listed_words("frequent").get(code, frozenset()),
        normaliser(code),
    )
    entries: dict[str, Sequence[str]] = {}
    for _, word, english in sorted(ranked, key=lambda entry: entry[:2]):
        form = word if unspaced else normalise(word)
        usable = (
            len(word) <= LONGEST_ENTRY
            if unspaced
            else len(form) > 1 and " " not in word and not {form, word.lower()} & stops
        )
        if english and usable:
            entries.setdefault(form, english[:ALTERNATIVES])
        if len(entries) == ENTRIES:
            break
    return entries


def write_glossaries(folder: Path, out: Path) -> None:
    """Write a file for each language to `out`; folder: the sources."""
    sources = Sources(folder)
    ranked = {code: sources.direct(code) for code in FREQDB if code != "zh"} | {
        "de": sources.german(),
        "ru": sources.russian(),
        "pl": sources.polish(),
        "zh": sources.chinese(),
        "ja": sources.japanese(),
    }
    questions = json.loads(QUESTION_WORDS.read_text(encoding="utf-8"))
    for code, words in ranked.items():
        entries = entries_of(code, words)
        entries |= {word: [english] for word, english in questions.get(code, {}).items()}
        lines = (f"{form}\t{' '.join(dict.fromkeys(' '.join(entries[form]).split()))}" for form in sorted(entries))
        (out / f"{code}{SUFFIX}").write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
        print(code, len(entries), flush=True)
