"""Finds the question of a chat request, and the long texts that may be thinned for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

# Characters of the longest paragraph that counts as a question or an instruction, and of the longest text that is no document.
SHORT_CHARACTERS = 1_000
ROLES = ("system", "developer", "user")
BLANK_LINES, LINE_ENDS = re.compile(r"\n[ \t\r]*\n\s*"), re.compile(r"\n\s*")
# Words of questions that need the whole document. A needless match costs time, a missing one costs an answer.
WHOLE_DOCUMENT = re.compile(
    r"\b(?:list|count|enumerate|summar\w+|tl;?dr|overview|outline|gist|takeaways?|(?:key|main) (?:points?|ideas?|facts?)|"
    r"translat\w+|rewrite|rephrase|paraphrase|proofread|all|every|each|whole|entire|in total|altogether|how many times|"
    r"how many\b.{1,60}\b(?:are|is) (?:there|listed|named|mentioned)|"
    r"what (?:is|does) (?:this|the) (?:text|document|report|article|file|paper)s? (?:about|say))\b",
    re.IGNORECASE,
)


class Untouched(Exception):
    """A request is forwarded as it came; its text says why."""


@dataclass(frozen=True, kw_only=True)
class LongText:
    """A text of a message, of which [start, end) may be thinned. part: its index in the content; None: it is the content."""

    message: int
    part: int | None
    text: str
    start: int
    end: int

    @property
    def document(self) -> str:
        """The part that may be thinned."""
        return self.text[self.start : self.end]


def split_request(body: Mapping[str, Any]) -> tuple[str, list[LongText]]:
    """The question of a request, and the texts that are read for it.

    The question is the last user message, or of a long one its last paragraph; where only the first asks something, the
    first. Of every long text of the user or the system the first and the last paragraph stay, if they are short: they are
    instructions more often than evidence.

    Raises Untouched for a request with tools, with other content than text, without a question or long texts, and for a
    question that needs all of them.
    """
    if body.get("tools") or body.get("functions"):
        raise Untouched("tools")
    texts = [text for text in texts_of(body.get("messages")) if text[0] in ROLES]
    last = next((number for number in reversed(range(len(texts))) if texts[number][0] == "user"), None)
    if last is None:
        raise Untouched("no question")
    question, long_texts = texts[last][3].strip(), []
    for number, (_, message, part, text) in enumerate(texts):
        if len(text) <= SHORT_CHARACTERS:
            continue
        start, end = middle_of(text)
        if number == last:
            head, tail = text[:start].strip(), text[end:].strip()
            question = head if "?" in head and "?" not in tail else tail
        long_texts.append(LongText(message=message, part=part, text=text, start=start, end=end))
    if not question:
        raise Untouched("no question")
    if not long_texts:
        raise Untouched("short")
    if WHOLE_DOCUMENT.search(question):
        raise Untouched("the question needs everything")
    return question, long_texts


def texts_of(messages: object) -> list[tuple[str, int, int | None, str]]:
    """Role, message, part and text of each text in the messages. Raises Untouched for anything but text."""
    texts: list[tuple[str, int, int | None, str]] = []
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            raise Untouched("not text alone")
        role, content = str(message.get("role")), message.get("content")
        if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            raise Untouched("tools")
        if isinstance(content, str):
            texts.append((role, number, None, content))
            continue
        for index, part in enumerate(content if isinstance(content, list) else (None,)):
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise Untouched("not text alone")
            texts.append((role, number, index, part["text"]))
    return texts


def middle_of(text: str) -> tuple[int, int]:
    """The characters [start, end) of a text between its first and its last paragraph, as far as these are short.

    Where the last paragraph is long, lines count instead. A last one that ends with a colon ("Answer:") has the one before
    with it.
    """
    gaps = [gap.span() for gap in BLANK_LINES.finditer(text)]
    if len(text) - (gaps[-1][1] if gaps else 0) > SHORT_CHARACTERS:
        gaps = [gap.span() for gap in LINE_ENDS.finditer(text)]
    after = gaps[:-1] if len(gaps) > 1 and text.rstrip().endswith(":") else gaps
    start = gaps[0][1] if gaps and gaps[0][0] <= SHORT_CHARACTERS else 0
    end = after[-1][0] if after and len(text) - after[-1][1] <= SHORT_CHARACTERS else len(text)
    return start, max(start, end)


def with_texts(body: Mapping[str, Any], long_texts: Sequence[LongText], kept_texts: Sequence[str]) -> dict[str, Any]:
    """The request with the kept parts of its long texts in their places."""
    thinned = deepcopy(dict(body))
    for text, document in zip(long_texts, kept_texts, strict=True):
        message = thinned["messages"][text.message]
        content = text.text[: text.start] + document + text.text[text.end :]
        if text.part is None:
            message["content"] = content
        else:
            message["content"][text.part]["text"] = content
    return thinned
