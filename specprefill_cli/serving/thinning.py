"""Decides what is document and what is asked in a chat request, by what text is and not by where it stands.

In doubt text counts as asked: only sentences that are surely document may be thinned, and only for a question that a place
in the document answers.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from specprefill_cli.documents.sentences import sentences_of
from specprefill_cli.serving import wording
from specprefill_cli.serving.guard import ApiError

# Texts and outer paragraphs up to this many characters count as questions or instructions.
SHORT_CHARACTERS = 1_000
# A paragraph up to this many characters with a question or a request is asked as a whole; a closing or a heading is shorter.
ASKED_CHARACTERS, CLOSING_CHARACTERS, MOST_CLOSINGS = 400, 100, 6
# Sentences at the end of a long outer paragraph that are kept.
OUTER_SENTENCES = 3
# More questions than these between the outer paragraphs are the document's own.
MOST_INNER_QUESTIONS = 8
# Shorter pieces of a document are kept; the share of all characters that has to be surely document.
SHORTEST_DOCUMENT, CLEAR_MAJORITY = 100, 0.6
# A text is no document if this share of its unmarked sentences are in the user's own words, or instruct the system.
OWN_SHARE, INSTRUCTING_SHARE = 0.3, 0.1
# The header with the reason why nothing was thinned.
REASON = "x-specprefill-reason"
ROLES = ("system", "developer", "user")
GAP = re.compile(r"\n[ \t\r]*\n\s*|\n(?=[ \t]*(?:[-=*_~`]{3,}|\"{3}|</?\w))|(?<=[-=`]{3})\s*\n|(?<=\"{3})\s*\n")
LINE = re.compile(r"\n\s*")
ASKING_TAG = re.compile(rf"<({wording.ASKING_TAGS})\b[^<>\n]{{0,100}}>", re.IGNORECASE)
FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,}|\"{3})", re.MULTILINE)
MARK = re.compile(rf"{FENCE.pattern}|<({wording.DATA_TAGS})\b[^<>\n]{{0,300}}>", re.MULTILINE | re.IGNORECASE)


# The characters [start, end) of a text.
Range = tuple[int, int]


class Untouched(Exception):
    """A request that is forwarded as it came. The message is the reason."""


@dataclass(frozen=True, kw_only=True)
class LongText:
    """The text `holder[key]` of a message or of a part of it; its characters [start, end) may be thinned."""

    holder: dict[str, Any]
    key: str
    start: int
    end: int

    @property
    def document(self) -> str:
        """The part that may be thinned."""
        return self.holder[self.key][self.start : self.end]

    def replace(self, kept: str) -> None:
        """Write the kept text into the request, in place of the document."""
        text = self.holder[self.key]
        self.holder[self.key] = text[: self.start] + kept + text[self.end :]


@dataclass(frozen=True, kw_only=True)
class Division:
    """A text divided into what is asked and what is surely document.

    asked: what may be the question, in paragraphs or sentences; inner: requests inside the document, which count where
    nothing else of the message is asked; documents: character ranges
    is_unclear: whether the text is short, asks nothing that is known, and is no thanks
    """

    asked: Sequence[str]
    inner: Sequence[str] = ()
    documents: Sequence[Range] = ()
    is_unclear: bool = False


def find_long_texts(body: Mapping[str, Any]) -> tuple[str, list[LongText]]:
    """Find the question of a request, and the texts of user and system that are surely document, in order.

    Replace them from the last to the first, because each is a range of its message.

    The question is asked by the last user message; where that holds none, by an earlier one, or by the system.

    Raises Untouched for a request with tools, with other content than text, without a clear question, for a question that
    needs the whole document, and where no clear majority of the text is surely document.
    """
    if body.get("tools") or body.get("functions"):
        raise Untouched("tools")
    all_texts = texts_of(body.get("messages"))
    texts = [text for text in all_texts if text[0] in ROLES]
    if not any(role == "user" for role, *_ in texts):
        raise Untouched("no question")
    divisions = [divide(holder[key], role != "user") for role, _, holder, key in texts]
    question = find_question([(role, number) for role, number, *_ in texts], divisions)
    long_texts = [
        LongText(holder=holder, key=key, start=start, end=end)
        for (_, _, holder, key), division in zip(texts, divisions, strict=True)
        for start, end in division.documents
    ]
    characters = sum(len(text.document) for text in long_texts)
    if not characters:
        raise Untouched("short")
    if characters < CLEAR_MAJORITY * sum(len(holder[key]) for _, _, holder, key in all_texts):
        raise Untouched("mostly not document")
    return question, long_texts


def name_document(messages: object, document: str) -> tuple[str, list[LongText]]:
    """Find the question of a request whose client names its document, and the place of the document.

    The document is put before the last user message where no message holds it.

    Raises ApiError for other content than text, and for a request that asks nothing.
    """
    try:
        texts = [text for text in texts_of(messages) if text[0] in ROLES]
    except Untouched as untouched:
        raise ApiError(400, f"specprefill.document: the messages must be text alone, but hold {untouched}") from None
    last = max((number for role, number, *_ in texts if role == "user"), default=None)
    own = [(holder, key) for _, number, holder, key in texts if number == last]
    question = "\n".join(holder[key].replace(document, "").strip() for holder, key in own).strip()
    if not question:
        raise ApiError(400, "specprefill.document: the last user message asks nothing about it")
    holder, key = next(((holder, key) for *_, holder, key in texts if document in holder[key]), own[0])
    if document not in holder[key]:
        holder[key] = f"{document}\n\n{holder[key]}"
    start = holder[key].find(document)
    return question[-SHORT_CHARACTERS:], [LongText(holder=holder, key=key, start=start, end=start + len(document))]


def find_question(places: Sequence[tuple[str, int]], divisions: Sequence[Division]) -> str:
    """The question of a request. places: role and number of the message of each text. Raises Untouched."""
    users = sorted({number for role, number in places if role == "user"}, reverse=True)
    for numbers in (*([number] for number in users), [number for role, number in places if role != "user"]):
        own = [division for (_, number), division in zip(places, divisions, strict=True) if number in numbers]
        asked = [*chain(*(division.asked for division in own))] or [*chain(*(division.inner for division in own))]
        if any(map(wording.WHOLE.search, asked)):
            raise Untouched("the question needs everything")
        if clear := [text for text in asked if is_clear(text)]:
            return "\n".join(dict.fromkeys(clear))[-SHORT_CHARACTERS:]
        if asked or (numbers[:1] == users[:1] and any(division.is_unclear for division in own)):
            raise Untouched("no clear question")
    raise Untouched("no question")


def texts_of(messages: object) -> list[tuple[str, int, dict[str, Any], str]]:
    """Role, number of the message, holder and key of all texts `holder[key]`. Raises Untouched for other content."""
    texts: list[tuple[str, int, dict[str, Any], str]] = []
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            raise Untouched("not text alone")
        role, content = str(message.get("role")), message.get("content")
        if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            raise Untouched("tools")
        if isinstance(content, str):
            texts.append((role, number, message, "content"))
            continue
        if content is None and role == "assistant":
            continue
        for part in content if isinstance(content, list) else (None,):
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise Untouched("not text alone")
            texts.append((role, number, part, "text"))
    return texts


def divide(text: str, is_system: bool) -> Division:
    """Divide a text of a message. is_system: whether it is the system's, which is mostly instructions."""
    labelled = labelled_questions(text)
    questions = [text[start:end].strip() for start, end in labelled]
    if len(text) <= SHORT_CHARACTERS:
        asked = questions or asked_in([text])
        return Division(asked=asked, is_unclear=not asked and not wording.CLOSING.match(text))
    marks, paragraphs = marked_ranges(text), paragraphs_of(text)
    groups: list[list[Range]] = [[] for _ in paragraphs]
    for start, end in sentences_of(text).tolist():
        groups[max(0, bisect_right(paragraphs, (start, sys.maxsize)) - 1)].append((start, end))
    sentences = [*chain(*groups)]
    unmarked = [text[start:end] for start, end in sentences if not is_inside(start, marks)]
    if is_in_own_words(unmarked, len(sentences), is_system and not marks and not wording.DATA_LABEL.search(text)):
        return Division(asked=questions or asked_in(unmarked))
    outer = outer_sentences(groups, paragraphs, [is_inside(start, marks) for start, _ in paragraphs])
    asked = questions or asked_in([text[start:end] for own in outer for start, end in asked_together(own)])
    kept = {*chain(*outer)}
    inner = [own for group in groups if not kept.issuperset(group) for own in inner_requests(text, group)]
    if len(inner) > MOST_INNER_QUESTIONS:
        # They are the document's own, for example those of a list of questions and answers.
        inner = []
    inner_asked = asked_in([text[own[0][0] : own[-1][1]] for own in inner])
    kept |= {*chain(*inner)}
    is_kept = [
        sentence in kept or any(start < sentence[1] and sentence[0] < end for start, end in labelled)
        for sentence in sentences
    ]
    return Division(asked=asked, inner=inner_asked, documents=ranges_not_kept(sentences, is_kept))


def inner_requests(text: str, group: Sequence[Range]) -> list[Sequence[Range]]:
    """A short paragraph's sentences if one may be asked; of a longer one each sentence that may be, and the next one."""
    flagged = [n for n, (start, end) in enumerate(group) if may_be_asked(text[start:end])]
    if flagged and group[-1][1] - group[0][0] <= ASKED_CHARACTERS:
        return [group]
    return [group[n : n + 2] for n in flagged]


def is_in_own_words(sentences: Sequence[str], total: int, is_system: bool) -> bool:
    """Whether so many sentences without marks are the user's own account, or instructions, that a text is no document.

    total: of all sentences
    """
    signs, share = (wording.INSTRUCTING, INSTRUCTING_SHARE) if is_system else (wording.OWN_WORDS, OWN_SHARE)
    own = sum(bool(signs.search(sentence) or wording.REQUEST.match(sentence)) for sentence in sentences)
    return own > max(OUTER_SENTENCES, share * total)


def asked_in(texts: Sequence[str]) -> list[str]:
    """The texts that ask; where none does, those that begin as a question does."""
    return [text for text in texts if any(map(may_be_asked, text.splitlines()))] or [
        text for text in texts if wording.LOOKUP.match(text.lstrip("¿ \t\n")) and not text.rstrip().endswith(".")
    ]


def is_clear(asked: str) -> bool:
    """Whether its lines that ask do so for something that one place of a document answers."""
    lines = asked.splitlines()
    asking = [line for line in lines if may_be_asked(line)] or lines
    return all(wording.LOOKUP.search(line) or wording.YES_OR_NO.match(line) for line in asking[:1])


def may_be_asked(sentence: str) -> bool:
    """Whether a sentence has a question mark, or begins as a request does."""
    return bool(wording.QUESTION_MARK.search(sentence) or wording.REQUEST.match(sentence))


def labelled_questions(text: str) -> list[Range]:
    """The ranges inside tags such as `<question>`, and after labels such as `Question:` up to the line's end; none if many."""
    found = []
    for tag in ASKING_TAG.finditer(text):
        end = text.find(f"</{tag[1]}", tag.end(), tag.end() + SHORT_CHARACTERS)
        found += [(tag.end(), end)] if end >= 0 else []
    for label in wording.ASKING_LABEL.finditer(text):
        end = text.find("\n", label.end())
        found.append((label.end(), len(text) if end < 0 else end))
    return (
        [(start, end) for start, end in found if text[start:end].strip()] if len(found) <= MOST_INNER_QUESTIONS else []
    )


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
    for mark in MARK.finditer(text):
        name = (mark[2] or "").lower()
        if mark.start() < position or name in unclosed:
            continue
        closing = re.compile(rf"</{name}\b", re.IGNORECASE) if name else FENCE
        end = closing.search(text, mark.end())
        if end is None:
            unclosed.add(name)
        else:
            ranges.append((mark.end(), end.start()))
            position = end.end()
    return ranges


def is_inside(position: int, ranges: Sequence[Range]) -> bool:
    """Whether a position is inside one of these ranges, which are in order."""
    number = bisect_right(ranges, (position, position + 1)) - 1
    return number >= 0 and ranges[number][0] <= position < ranges[number][1]


def outer_sentences(
    groups: Sequence[Sequence[Range]], paragraphs: Sequence[Range], is_marked: Sequence[bool]
) -> list[Sequence[Range]]:
    """The sentences around a document, by paragraph, in order.

    groups: the sentences of each paragraph

    At either end stand greetings, closings and a signature, and one longer paragraph; between marks every short paragraph.
    """
    lengths = [end - start for start, end in paragraphs]
    short = {
        n for n, length in enumerate(lengths) if any(is_marked) and not is_marked[n] and length <= SHORT_CHARACTERS
    }
    outer = {number: groups[number] for number in short}
    for step in (1, -1):
        for closings, number in enumerate(range(len(lengths))[::step]):
            if is_marked[number] and outer:
                break
            if lengths[number] > SHORT_CHARACTERS:
                own = groups[number][::step][:OUTER_SENTENCES]
                outer[number] = sorted({*own, *outer.get(number, ())})
                break
            outer[number] = groups[number]
            if lengths[number] > CLOSING_CHARACTERS or closings == MOST_CLOSINGS:
                break
    return [outer[number] for number in sorted(outer) if outer[number]]


def asked_together(sentences: Sequence[Range]) -> Sequence[Range]:
    """Join the sentences of a short paragraph."""
    start, end = sentences[0][0], sentences[-1][1]
    return [(start, end)] if end - start <= ASKED_CHARACTERS else sentences


def ranges_not_kept(sentences: Sequence[Range], is_kept: Sequence[bool]) -> list[Range]:
    """The character ranges of neighbouring sentences that are not kept, without short ones."""
    ranges = []
    for kept, group in groupby(zip(sentences, is_kept, strict=True), key=lambda pair: pair[1]):
        run = [sentence for sentence, _ in group]
        if not kept and run[-1][1] - run[0][0] >= SHORTEST_DOCUMENT:
            ranges.append((run[0][0], run[-1][1]))
    return ranges
