"""Decides what is document and what is asked in a chat request, by what text is and not by where it stands.

In doubt text counts as asked: only sentences that are surely document may be thinned, and only for a question that a place
in the document answers.
"""

import re
import sys
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby
from pathlib import Path

from specprefill_cli.documents.sentences import sentences_of

# Characters of texts and outer paragraphs that count as asked; the most at either end of a text, and as a part of it.
SHORT_CHARACTERS, OUTER_CHARACTERS, OUTER_PARTS = 1_000, 800, 6
# A paragraph up to this many characters with a question or a request is asked as a whole.
ASKED_CHARACTERS = 400
# A longer line is read in sentences.
PIECE_CHARACTERS = 250
# Sentences at the outer end of a longer outer paragraph that are kept.
OUTER_SENTENCES = 3
# More questions than these between the outer paragraphs are the document's own.
MOST_INNER_QUESTIONS = 8
# Pieces at either end of a text among which its requests are looked for.
OUTER_PIECES = 24
# A character of these scripts says as much as three of an alphabet.
DENSE_CHARACTER = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
# Shorter pieces of a document are kept.
SHORTEST_DOCUMENT = 100
# A text is no document if this share of its unmarked sentences are in the user's own words.
OWN_SHARE = 0.3
GAP = re.compile(r"\n[ \t\r]*\n\s*|\n(?=[ \t]*(?:[-=*_~`]{3,}|\"{3}|</?\w))|(?<=[-=`]{3})\s*\n|(?<=\"{3})\s*\n")
LINE = re.compile(r"\n\s*")
# The end of a line of wrapped prose.
WRAP = re.compile(r"(?<=[^\n]{45})\n(?=\w)")

# The characters [start, end) of a text.
Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Division:
    """A text divided into what may be asked, in lines or sentences, and the ranges that are surely document."""

    asked: Sequence[str]
    documents: Sequence[Range] = ()


@cache
def pattern(name: str) -> re.Pattern[str]:
    """A pattern of `wording.toml`."""
    wording = tomllib.loads(Path(__file__).with_name("wording.toml").read_text(encoding="utf-8"))
    return re.compile("".join(wording[name]), re.IGNORECASE | re.MULTILINE)


def divide(text: str, is_system: bool) -> Division:
    """Divide a text of a message. is_system: whether it is the system's, which is mostly instructions."""
    labelled = labelled_questions(text)
    questions = [text[start:end].strip() for start, end in labelled]
    density = size_of(text) / max(1, len(text))
    if size_of(text) <= SHORT_CHARACTERS:
        return Division(asked=questions or pieces_of(text, paragraphs_of(text)))
    forms, paragraphs = [form.span() for form in pattern("form").finditer(text)], paragraphs_of(text)
    marks = [mark for mark in marked_ranges(text) if not is_inside(mark[0], forms)]
    groups: list[list[Range]] = [[] for _ in paragraphs]
    for start, end in sentences_of(text).tolist():
        groups[max(0, bisect_right(paragraphs, (start, sys.maxsize)) - 1)].append((start, end))
    sentences = [*chain(*groups)]
    unmarked = [text[start:end] for start, end in sentences if not is_inside(start, marks)]
    # A system text that marks no document is rules or a character.
    is_rules = is_system and not marks and not pattern("data_label").search(text)
    # `How do I pay?` also stands in lists of questions and answers.
    stated = [sentence for sentence in unmarked if not pattern("question_mark").search(sentence)]
    own = sum(bool(pattern("own_words").search(sentence) or pattern("request").match(sentence)) for sentence in stated)
    if is_rules or own > max(OUTER_SENTENCES, OWN_SHARE * len(sentences)):
        return Division(asked=[*questions, *outer_pieces(unmarked)])
    is_marked = [is_inside(start, marks) for start, _ in paragraphs]
    # What stands further inside may be rules, but its questions are mostly the document's.
    outer = outer_sentences(text, groups, paragraphs, is_marked, int(ASKED_CHARACTERS / density))
    outer_ranges = [(own[0][0], own[-1][1]) for own in outer]
    # A label further inside is the document's own, and what stands below the last one is asked as well.
    labelled = [own for own in labelled if own[0] > len(text) * 3 // 4 or is_inside(own[0], outer_ranges)]
    below = labelled[-1][1] if labelled else 0
    asked = [text[start:end].strip() for start, end in labelled]
    asked += pieces_of(text, [(max(start, below), end) for start, end in outer_ranges if end > below])
    most = min(OUTER_CHARACTERS, max(ASKED_CHARACTERS, len(text) // OUTER_PARTS))
    kept = {*chain(*outer_sentences(text, groups, paragraphs, is_marked, int(most / density)))}
    inner = [own for group in groups if not kept.issuperset(group) for own in inner_requests(text, group, density)]
    # Many requests inside are the document's own, as in a list of questions and answers; without answers they are asked.
    if len(inner) <= MOST_INNER_QUESTIONS or len(inner) > len(sentences) / 2:
        kept |= {*chain(*inner)}
    # Behind a label at the end, and beside a marked document that is most of the text, all may be asked.
    whole = [*labelled, *forms, *((start, len(text)) for start, _ in labelled[-1:] if start > len(text) * 3 // 4)]
    if sum(end - start for start, end in marks) > len(text) / 2:
        kept |= {own for own in sentences if not is_inside(own[0], marks)}
    kept |= {(first, last) for first, last in sentences if any(start < last and first < end for start, end in whole)}
    runs = ([*group] for is_kept, group in groupby(sentences, kept.__contains__) if not is_kept)
    documents = [(run[0][0], run[-1][1]) for run in runs if run[-1][1] - run[0][0] >= SHORTEST_DOCUMENT]
    return Division(asked=asked, documents=documents)


def size_of(text: str) -> int:
    """How much a text says, in characters of an alphabet."""
    return len(text) + 2 * len(DENSE_CHARACTER.findall(text))


def pieces_of(text: str, paragraphs: Iterable[Range]) -> list[str]:
    """The outer lines of these paragraphs, long ones and wrapped ones in sentences."""
    pieces = []
    for line in chain(*(WRAP.sub(" ", text[start:end]).splitlines() for start, end in paragraphs)):
        is_long = len(line) > PIECE_CHARACTERS
        pieces += [line[start:end] for start, end in sentences_of(line).tolist()] if is_long else [line.strip()]
    return outer_pieces(pieces)


def outer_pieces(pieces: Sequence[str]) -> list[str]:
    """The first and last pieces that hold a letter or digit."""
    worded = [piece for piece in pieces if re.search(r"\w", piece)]
    return worded if len(worded) <= 2 * OUTER_PIECES else [*worded[:OUTER_PIECES], *worded[-OUTER_PIECES:]]


def inner_requests(text: str, group: Sequence[Range], density: float) -> list[Sequence[Range]]:
    """A short paragraph's sentences if one may be asked; of a longer one each sentence that may be, and the next one."""
    sentences = [text[start:end] for start, end in group]
    # With a question mark, or beginning as a request does.
    is_asked = [pattern("question_mark").search(part) or pattern("request").match(part) for part in sentences]
    flagged = [n for n, asked in enumerate(is_asked) if asked]
    if flagged and group[-1][1] - group[0][0] <= ASKED_CHARACTERS / density:
        return [group]
    return [group[n : n + 2] for n in flagged]


def labelled_questions(text: str) -> list[Range]:
    """The ranges inside tags such as `<question>`, and after labels such as `Question:` up to the line's end; none if many."""
    ranges = [match.span("asked") for name in ("asking_tag", "asking_label") for match in pattern(name).finditer(text)]
    return ranges if len(ranges) <= MOST_INNER_QUESTIONS else []


def paragraphs_of(text: str) -> list[Range]:
    """The character ranges of a text's paragraphs; of its lines where its first or last paragraph is long."""
    for gap in (GAP, LINE):
        edges = [0, *(position for match in gap.finditer(text) for position in match.span()), len(text)]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        ranges = [(start, end) for start, end in pairs if text[start:end].strip()]
        if ranges and max(end - start for start, end in (ranges[0], ranges[-1])) <= SHORT_CHARACTERS:
            break
    return ranges or [(0, len(text))]


def marked_ranges(text: str) -> list[Range]:
    """The character ranges inside fences and tags of data, in order; of nested ones the outer one."""
    ranges, position, unclosed = [], 0, set()
    for mark in pattern("mark").finditer(text):
        name = (mark[2] or mark[1]).lower()
        if mark.start() < position or name in unclosed:
            continue
        # A tag that opens again before it closes was only mentioned, as in `put it in <data> tags`.
        closing = rf"<(/?){name}(?=[\s>])" if mark[2] else rf"^[ \t]*({name})"
        end = re.compile(closing, re.IGNORECASE | re.MULTILINE).search(text, mark.end())
        if end is None:
            unclosed.add(name)
        elif end[1]:
            ranges.append((mark.end(), end.start()))
            position = end.end()
    return ranges


def is_inside(position: int, ranges: Sequence[Range]) -> bool:
    """Whether a position is inside one of these ranges, which are in order."""
    number = bisect_right(ranges, (position, position + 1)) - 1
    return number >= 0 and ranges[number][0] <= position < ranges[number][1]


def outer_sentences(
    text: str, groups: Sequence[Sequence[Range]], paragraphs: Sequence[Range], is_marked: Sequence[bool], most: int
) -> list[Sequence[Range]]:
    """The sentences around a document, by paragraph, in order.

    groups: the sentences of each paragraph; most: characters at either end, in whole paragraphs
    At either end stand rules, greetings and a signature; above a label, and between marks, every short paragraph.
    """
    lengths = [end - start for start, end in paragraphs]
    label = pattern("data_label").search(text, 0, len(text) // 4)
    head = len(text) if any(is_marked) else label.end() if label else 0
    short = [length <= SHORT_CHARACTERS and not mark for length, mark in zip(lengths, is_marked, strict=True)]
    outer = {n: groups[n] for n, (start, _) in enumerate(paragraphs) if short[n] and start < head}
    for step in (1, -1):
        passed = 0
        for number in range(len(lengths))[::step]:
            if (is_marked[number] and outer) or (passed > most / 4 and passed + lengths[number] > most):
                break
            passed += lengths[number]
            ending = groups[number] if short[number] else groups[number][::step][:OUTER_SENTENCES]
            outer[number] = sorted({*ending, *outer.get(number, ())})
    return [outer[number] for number in sorted(outer) if outer[number]]
