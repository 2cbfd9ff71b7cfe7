"""Splits text into sentences: prose at full stops; lists, tables and headings at line ends."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specprefill_cli.caches import ByteCache
from specprefill_cli.documents.language import listed_words

if TYPE_CHECKING:
    import numpy as np

# Characters of the longest sentence; longer sentences are cut between words.
LONGEST_SENTENCE = 400
# A shorter line ends a paragraph, a heading or a list item; a longer line may be wrapped prose.
SHORTEST_WRAPPED_LINE = 50
# Separates the cells of a row in the text of a table.
CELLS = " | "
CLOSERS = "\"'\u201d\u2019\u00bb)]"
BREAK = re.compile(
    r"""
    \n\s*                               # the end of a line, which may be wrapped, or a blank line
    | (?<=[.!?…])["'\u201d\u2019»)\]]*\s+(?=["'\u201c\u2018«(\[¿¡]*[^\W_a-z])  # a full stop before a capital or a digit
    | (?<=[\u3002\uff01\uff1f])         # scripts without spaces
    """,
    re.VERBOSE,
)
LAST_WORD = re.compile(r"([\w.]+)\.$")
RANGES: ByteCache["np.ndarray"] = ByteCache(2**26, lambda ranges: ranges.nbytes)


def sentences_of(text: str) -> "np.ndarray":
    """The character ranges [n, 2] of a text's sentences, in order; read-only, cached for the next question about the text."""
    import numpy as np

    ranges = RANGES.find_or(text, lambda: np.array(list(sentence_ranges(text)), dtype=np.int64).reshape(-1, 2))
    ranges.setflags(write=False)
    return ranges


def sentences_around(text: str, start: int, end: int) -> tuple[int, int]:
    """The range of the sentences that the characters [start, end) of a text touch."""
    begins, ends = sentences_of(text).T
    first, last = begins.searchsorted(start, side="right"), ends.searchsorted(end)
    return int(begins[:first].max(initial=0)), int(ends[last:].min(initial=len(text)))


def sentence_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Yield the character range of each sentence of a text, in order, without surrounding blanks."""
    first, has_tables = 0, CELLS in text
    for match in BREAK.finditer(text):
        before = text[max(first, match.start() - SHORTEST_WRAPPED_LINE) : match.start()]
        if not _ends_sentence(before, match.group(), text[match.end() : match.end() + 1]):
            continue
        if has_tables and "\n" not in match.group():
            low, place, high = max(0, match.start() - LONGEST_SENTENCE), match.start(), match.start() + LONGEST_SENTENCE
            if CELLS in text[low:place].rpartition("\n")[2] + text[place:high].partition("\n")[0]:
                continue
        closers = len(match.group()) - len(match.group().lstrip(CLOSERS))
        yield from _cut(text, first, match.start() + closers)
        first = match.end()
    yield from _cut(text, first, len(text))


def _ends_sentence(before: str, separator: str, following: str) -> bool:
    """Whether a separator ends a sentence. before: at most `SHORTEST_WRAPPED_LINE` characters, so that time is linear."""
    line = before.rpartition("\n")[2]
    if "\n" in separator:
        is_wrapped = separator.count("\n") == 1 and len(line) >= SHORTEST_WRAPPED_LINE and following.isalnum()
        return not is_wrapped or line.rstrip(CLOSERS).endswith((".", "!", "?", ":"))
    last_word = LAST_WORD.search(line)
    # `BREAK` tells lower case in Latin letters alone.
    if last_word is None or following.islower():
        return not following.islower()
    word = last_word.group(1).lower()
    is_initial = len(word) == 1 and last_word.group(1).isupper()
    is_item = word.isdigit() and len(line.split()) == 1
    return not (is_initial or is_item or word in listed_words("abbreviations")["all"])


def _cut(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of text[first:last] without surrounding blanks, each of at most `LONGEST_SENTENCE` characters."""
    first = last - len(text[first:last].lstrip())
    last = first + len(text[first:last].rstrip())
    while last - first > LONGEST_SENTENCE:
        blank = text.rfind(" ", first + LONGEST_SENTENCE // 2, first + LONGEST_SENTENCE)
        cut = blank if blank >= 0 else first + LONGEST_SENTENCE
        yield first, cut
        first = cut + (blank >= 0)
    if first < last:
        yield first, last
