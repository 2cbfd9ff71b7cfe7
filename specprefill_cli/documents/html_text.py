"""A parsed HTML tree -> lines of text. Iterative: the depth of a page must not meet Python's recursion limit."""

import threading
from enum import IntEnum

from bs4 import BeautifulSoup
from bs4.element import CData, NavigableString, PreformattedString, Tag

DROPPED = frozenset({"script", "style", "noscript", "template", "title"})
PREFORMATTED = frozenset({"pre", "textarea"})
CELLS = frozenset({"td", "th"})
ROWS = frozenset({"tr", "table"})
# fmt: off
BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "button", "caption", "center", "dd", "details",
    "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3",
    "h4", "h5", "h6", "header", "hgroup", "hr", "legend", "li", "main", "menu", "nav", "ol", "optgroup",
    "option", "p", "pre", "section", "select", "summary", "tbody", "textarea", "tfoot", "thead", "ul",
})
# fmt: on


class _Gap(IntEnum):
    """What separates two pieces of text; where several meet, the strongest counts."""

    NOTHING = 0
    SPACE = 1
    LINE = 2
    CELL = 3  # stronger than LINE: a paragraph inside a cell does not break the row
    ROW = 4


class _Writer:
    """Collects text and writes between two pieces the strongest gap that was asked for."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._gap = _Gap.NOTHING
        self._cells = 0

    def separate(self, gap: _Gap) -> None:
        if gap is _Gap.ROW:
            self._cells = 0
        elif gap is _Gap.CELL:
            self._cells += 1
        self._gap = max(self._gap, gap)

    def write(self, text: str) -> None:
        self._parts += [self._separator(), text]
        self._gap, self._cells = _Gap.NOTHING, 0

    def _separator(self) -> str:
        start = "\n" if self._parts else ""
        if self._gap is _Gap.ROW:
            # Empty cells before the first filled one keep their bars, so that columns stay aligned.
            return start + "| " * (self._cells - 1)
        if self._gap is _Gap.CELL:
            return " " + "| " * self._cells if start else ""
        if self._gap is _Gap.LINE:
            return start
        return " " if self._gap is _Gap.SPACE and start else ""

    def text(self) -> str:
        return "".join(self._parts)


def title_of(soup: BeautifulSoup) -> str:
    """The page's title on one line; empty when it has none."""
    return " ".join(soup.title.get_text().split()) if soup.title else ""


def visible_lines(soup: BeautifulSoup, stop: threading.Event) -> str:
    """The text of all elements that are shown, blocks on lines of their own; ends early once ``stop`` is set."""
    writer = _Writer()
    preformatted = 0
    path = [(soup, iter(soup.contents))]
    while path and not stop.is_set():
        tag, children = path[-1]
        child = next(children, None)
        if child is None:
            path.pop()
            preformatted -= tag.name in PREFORMATTED
            writer.separate(_gap_after(tag.name))
        elif isinstance(child, Tag):
            if child.name not in DROPPED:
                path.append((child, iter(child.contents)))
                preformatted += child.name in PREFORMATTED
                writer.separate(_gap_before(child.name))
        elif isinstance(child, CData) or not isinstance(child, PreformattedString):  # the rest: comments, doctypes
            _write_string(writer, child, preformatted > 0)
    return writer.text()


def _gap_before(name: str) -> _Gap:
    return _Gap.CELL if name in CELLS else _gap_after(name)


def _gap_after(name: str) -> _Gap:
    if name in ROWS:
        return _Gap.ROW
    return _Gap.LINE if name in BLOCKS else _Gap.NOTHING


def _write_string(writer: _Writer, string: NavigableString, preformatted: bool) -> None:
    if preformatted:
        if string:
            writer.write(str(string))
        return
    words = string.split()
    if not words or string[0].isspace():
        writer.separate(_Gap.SPACE)
    if words:
        writer.write(" ".join(words))
        if string[-1].isspace():
            writer.separate(_Gap.SPACE)
