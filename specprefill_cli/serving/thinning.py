"""Finds the long texts of a chat request, and the question that the draft reads them for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Paragraphs up to this many characters count as questions or instructions; longer texts count as documents.
SHORT_CHARACTERS = 1_000
ROLES = ("system", "developer", "user")
BLANK_LINES, LINE_ENDS = re.compile(r"\n[ \t\r]*\n\s*"), re.compile(r"\n\s*")
# Words of questions that need the whole document. A false match costs time, a missed match costs an answer.
NEEDS_EVERYTHING = re.compile(
    r"\b(?:list|count|enumerate|summar\w+|tl;?dr|overview|outline|gist|takeaways?|(?:key|main) (?:points?|ideas?|facts?)|"
    r"translat\w+|rewrite|rephrase|paraphrase|proofread|all|every|each|whole|entire|in total|altogether|how many times|"
    r"how many\b.{1,60}\b(?:are|is) (?:there|listed|named|mentioned)|"
    r"what (?:is|does) (?:this|the) (?:text|document|report|article|file|paper)s? (?:about|say))\b",
    re.IGNORECASE,
)


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


def find_long_texts(body: Mapping[str, Any]) -> tuple[str, list[LongText]]:
    """Find the question of a request, and the long texts of user and system.

    The last user message is the question. A long message has its question in its last paragraph, or in its first
    paragraph where only that has a question mark. Short first and last paragraphs are not thinned: they are instructions
    more often than evidence.

    Raises Untouched for a request with tools, with other content than text, without a question or long texts, and for a
    question that needs the whole document.
    """
    if body.get("tools") or body.get("functions"):
        raise Untouched("tools")
    texts = [text for text in texts_of(body.get("messages")) if text[0] in ROLES]
    last = next((number for number in reversed(range(len(texts))) if texts[number][0] == "user"), None)
    if last is None:
        raise Untouched("no question")
    _, _, holder, key = texts[last]
    question, long_texts = holder[key].strip(), []
    for number, (_, _, holder, key) in enumerate(texts):
        text = holder[key]
        if len(text) <= SHORT_CHARACTERS:
            continue
        start, end = document_bounds(text)
        if number == last:
            head, tail = text[:start].strip(), text[end:].strip()
            question = head if "?" in head and "?" not in tail else tail
        long_texts.append(LongText(holder=holder, key=key, start=start, end=end))
    if not question:
        raise Untouched("no question")
    if not long_texts:
        raise Untouched("short")
    if NEEDS_EVERYTHING.search(question):
        raise Untouched("the question needs everything")
    return question, long_texts


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
        for part in content if isinstance(content, list) else (None,):
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise Untouched("not text alone")
            texts.append((role, number, part, "text"))
    return texts


def document_bounds(text: str) -> tuple[int, int]:
    """The characters [start, end) of a text without its first and its last paragraph, where these are short.

    Lines count as paragraphs where the last paragraph is long. A last paragraph that ends with a colon ("Answer:") takes
    the paragraph before it along.
    """
    gaps = [gap.span() for gap in BLANK_LINES.finditer(text)]
    if len(text) - (gaps[-1][1] if gaps else 0) > SHORT_CHARACTERS:
        gaps = [gap.span() for gap in LINE_ENDS.finditer(text)]
    last_gaps = gaps[:-1] if len(gaps) > 1 and text.rstrip().endswith(":") else gaps
    start = gaps[0][1] if gaps and gaps[0][0] <= SHORT_CHARACTERS else 0
    end = last_gaps[-1][0] if last_gaps and len(text) - last_gaps[-1][1] <= SHORT_CHARACTERS else len(text)
    return start, max(start, end)
