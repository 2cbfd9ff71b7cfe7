"""Text for a terminal or a page: made harmless, so that it is shown and never obeyed; and the evidence under an answer."""

import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from specprefill_cli.documents.language import says_not_found
from specprefill_cli.errors import one_line
from specprefill_cli.record import LIKELY, Passage, Record

# Controls, surrogates, line separators and format characters. The format characters include direction overrides, which
# reorder a line, and tags, which hide text.
OBEYED = frozenset({"Cc", "Cs", "Zl", "Zp", "Cf"})
# Joiners of Persian, Indic scripts and emoji, and format characters that are visible (Arabic, Kaithi).
HARMLESS = frozenset(
    "\n\t\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)


def printable(text: str) -> str:
    """Replace control characters, escapes and direction overrides by their visible code; keep line ends and tabs."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in HARMLESS or unicodedata.category(character) not in OBEYED:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def plain(text: str, style: str = "") -> Text:
    """Build a rich text; markup in `text` has no effect."""
    return Text(printable(text), style=style)


def evidence_view(answer: Record) -> Group:
    """Confidence and passages, as lines for a terminal."""
    return Group(*(plain(line, style="dim") for line in confidence_lines(answer)), passages_view(answer))


def passages_view(answer: Record) -> Group:
    """The passages below their documents and pages."""
    lines: list[Text | Padding] = []
    for place, passages in by_page(answer.passages):
        lines.append(plain(place, style="cyan"))
        for number, passage in enumerate(passages):
            if number:
                lines.append(plain("  ...", style="dim"))
            lines.append(Padding(plain(" ".join(passage.text.split())), (0, 0, 0, 2), expand=False))
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
