"""Joins the lines of a PDF into paragraphs.

The heuristic uses only the text. It joins a word that a hyphen divides at the line end. It joins a full line (at least
75 % of the page's usual line length) with the next line, unless it ends a sentence and the next line looks like a heading:
short, capitalised, without a full stop. All other breaks stay: blank lines, list items, numbered headings, table rows.

Only breaks become spaces and only dividing hyphens vanish: a wrong guess costs a line break, never text. Pages that have
only short lines (slides, forms, verse) stay unchanged.
"""

import re
import unicodedata
from itertools import pairwise

from specprefill_cli.documents.sentences import CELLS, CLOSERS

# A line is full from this fraction of the usual line length on: ragged-right text rarely falls below it.
FULL_LINE = 0.75
# The usual line length is this quantile over a page's lines: a single overlong line must not make all others short.
USUAL_QUANTILE = 0.9
# Narrower text is not joined; the narrow columns of journals have 40 to 50 characters.
NARROWEST_COLUMN = 35

HYPHENS = "-\u2010"
SENTENCE_ENDS = (".", "!", "?", ":", ";", "\u2026", "\u3002")
BLOCK_START = re.compile(
    r"[-*+\u2022\u2023\u25aa\u25cf\u25e6\u2013\u2014]\s"  # bullets
    r"|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,5})\)\s"  # (1) 1) a) iv)
    r"|\d{1,3}\.\s"  # 1.
    r"|\d{1,3}(?:\.\d{1,3})+\.?\s"  # 2.1
)
NUMBER = re.compile(r"(?<!\S)[^\s\d]*\d\S*")
DOT_LEADERS = ("....", ". . . .")


def join_lines(text: str) -> str:
    """Join the lines of each paragraph in the cleaned text of a page."""
    lines = [line.strip() for line in text.split("\n")]
    widths = [columns(line) for line in lines]
    filled_widths = sorted(filter(None, widths))
    usual_width = filled_widths[int(USUAL_QUANTILE * (len(filled_widths) - 1))] if filled_widths else 0
    is_full = [usual_width >= NARROWEST_COLUMN and width >= FULL_LINE * usual_width for width in widths]
    pieces = [lines[0]]
    for index, (line, following) in enumerate(pairwise(lines)):
        if divided_word(line, following) == "drop":
            pieces[-1] = pieces[-1][:-1]
        pieces += [separator(line, following, is_full[index], is_full[index + 1]), following]
    return "".join(pieces)


def divided_word(line: str, following: str) -> str | None:
    """Whether to `drop` or `keep` the hyphen of a word divided between two lines; None if no word is divided.

    `docu-` + `ment` drops the hyphen. It stays before a capital or digit (`Anglo-` + `Saxon`, `COVID-` + `19`), after a
    digit, and in a word with another hyphen (`state-of-the-` + `art`).
    """
    if BLOCK_START.match(following) or len(line) < 2 or not following or line[-1] not in HYPHENS:
        return None
    if not line[-2].isalnum() or not following[0].isalnum():
        return None
    word = line.rsplit(None, 1)[-1][:-1]
    compound = any(hyphen in word for hyphen in HYPHENS)
    return "drop" if line[-2].isalpha() and following[0].islower() and not compound else "keep"


def separator(line: str, following: str, line_is_full: bool, following_is_full: bool) -> str:
    """Return the separator between two lines: a line break, a space, or nothing."""
    if not line or not following or BLOCK_START.match(following):
        return "\n"
    if divided_word(line, following):
        return ""
    if not line_is_full or _is_table_row(line) or _is_table_row(following):
        return "\n"
    heading_next = not following_is_full and not _ends_sentence(following) and not following[0].islower()
    if heading_next and _ends_sentence(line):
        return "\n"
    return "" if _is_wide(line[-1]) and _is_wide(following[0]) else " "


def columns(line: str) -> int:
    """Width in columns: Chinese, Japanese and Korean characters take two."""
    return len(line) if line.isascii() else len(line) + sum(map(_is_wide, line))


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def _is_table_row(line: str) -> bool:
    if CELLS in line:
        return True
    words, numbers = len(line.split()), len(NUMBER.findall(line))
    return (words > 1 and 2 * numbers >= words) or any(leaders in line for leaders in DOT_LEADERS)


def _ends_sentence(line: str) -> bool:
    return line.rstrip(CLOSERS).endswith(SENTENCE_ENDS)
