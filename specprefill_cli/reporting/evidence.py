"""The evidence under an answer: its confidence, and the passages that most likely hold it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from specprefill_cli.documents.language import ENGLISH, frequent_words, says_not_found
from specprefill_cli.errors import one_line
from specprefill_cli.record import LIKELY, Passage, Record
from specprefill_cli.reporting.safe import plain

WORD = re.compile(r"\w+")


def evidence_view(answer: Record) -> Group:
    """Confidence and passages, as lines for a terminal."""
    return Group(*(plain(line, style="dim") for line in confidence_lines(answer)), passages_view(answer))


def passages_view(answer: Record) -> Group:
    """The passages below their documents and pages, with the words of question and answer in bold."""
    lines: list[Text | Padding] = []
    for place, passages in by_page(answer.passages):
        lines.append(plain(place, style="cyan"))
        for number, passage in enumerate(passages):
            if number:
                lines.append(plain("  ...", style="dim"))
            lines.append(Padding(highlight(passage.text, answer.question, answer.answer), (0, 0, 0, 2), expand=False))
    return Group(*lines)


def by_page(passages: Iterable[Passage]) -> Iterator[tuple[str, list[Passage]]]:
    """Group neighbouring passages of the same page, under document and page in words."""
    for _, group in groupby(passages, lambda passage: (passage.number, passage.page)):
        page_passages = list(group)
        yield f"{one_line(page_passages[0].document)}, page {page_passages[0].page}", page_passages


def confidence_lines(answer: Record) -> list[str]:
    """Lines on whether the documents state the answer and how likely it is right; empty if that is unknown."""
    if says_not_found(answer.answer):
        return ["the target found no answer; the passages may still hold it"]
    if answer.answerable is False:
        return ["the documents may not say this; the nearest passages:"]
    if answer.confidence is None:
        return []
    if answer.confidence >= LIKELY:
        return [f"likely right ({answer.confidence:.0%} of answers like this one are)"]
    return [f"unsure ({answer.confidence:.0%} of answers like this one are right); check the passages"]


def highlight(text: str, question: str, answer: str) -> Text:
    """A passage on a single line with the words of question and answer in bold, except function words."""
    line = plain(" ".join(text.split()))
    words = {word.lower() for word in WORD.findall(f"{question} {answer}")} - frequent_words()[ENGLISH]
    if words:
        pattern = rf"\b(?:{'|'.join(map(re.escape, sorted(words)))})\b"
        line.highlight_regex(re.compile(pattern, re.IGNORECASE), style="bold")
    return line
