"""HTML: the text that a reader of the page would see, read as a stream of tags: the depth of a page does not matter."""

import threading
from collections import Counter
from enum import IntEnum
from html.parser import HTMLParser

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.encoding import declared_encoding, decode
from specprefill_cli.documents.reader import FormatReader, Pages, SourceFile, check_stop

HIDDEN = ("script", "style", "noscript", "template", "title")
PREFORMATTED = ("pre", "textarea")
CELLS = frozenset({"td", "th"})
ROWS = frozenset({"tr", "table"})
BLOCKS = frozenset(
    "address article aside blockquote body br button caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol optgroup option p pre section "
    "select summary tbody textarea tfoot thead ul".split()
)


class _Gap(IntEnum):
    """What separates two pieces of text; where several meet, the strongest counts."""

    NOTHING = 0
    SPACE = 1
    LINE = 2
    CELL = 3  # stronger than LINE: a paragraph inside a cell does not break the row
    ROW = 4


class _Writer:
    """Collects pieces of text, separated by the strongest gap between them."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.gap = _Gap.NOTHING
        self.cells = 0

    def separate(self, gap: _Gap) -> None:
        if gap is _Gap.ROW:
            self.cells = 0
        elif gap is _Gap.CELL:
            self.cells += 1
        self.gap = max(self.gap, gap)

    def write(self, text: str) -> None:
        self.parts += [self.separator(), text]
        self.gap, self.cells = _Gap.NOTHING, 0

    def separator(self) -> str:
        line_end = "\n" if self.parts else ""
        if self.gap is _Gap.ROW:
            # Empty cells before the first filled one keep their bars, so that columns stay aligned.
            return line_end + "| " * (self.cells - 1)
        if self.gap is _Gap.CELL:
            return " " + "| " * self.cells if self.parts else ""
        if self.gap is _Gap.LINE:
            return line_end
        return " " if self.gap is _Gap.SPACE and self.parts else ""


class _Extractor(HTMLParser):
    """Writes the text that a browser would show, and keeps the first title apart."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self.stop = stop
        self.writer = _Writer()
        self.title = ""
        self.title_ended = False
        self.open: list[str] = []
        self.depths: Counter[str] = Counter()

    def inside(self, tags: tuple[str, ...]) -> bool:
        return any(self.depths[tag] for tag in tags)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        check_stop(self.stop)
        if tag not in HIDDEN and not self.inside(HIDDEN):
            self.writer.separate(_Gap.CELL if tag in CELLS else _gap_after(tag))
        if tag not in ("br", "hr"):
            self.open.append(tag)
            self.depths[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element of this name, and those in it that were never closed."""
        while self.depths[tag]:
            closed = self.open.pop()
            self.depths[closed] -= 1
            self.title_ended |= closed == "title"
            if closed not in HIDDEN and not self.inside(HIDDEN):
                self.writer.separate(_gap_after(closed))
            if closed == tag:
                return

    def handle_data(self, data: str) -> None:
        check_stop(self.stop)
        if self.inside(HIDDEN):
            if self.depths["title"] and not self.title_ended:
                self.title += data
        elif self.inside(PREFORMATTED):
            self.writer.write(data)
        else:
            self.write_words(data)

    def unknown_decl(self, data: str) -> None:
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))

    def write_words(self, text: str) -> None:
        if text[:1].isspace():
            self.writer.separate(_Gap.SPACE)
        if words := text.split():
            self.writer.write(" ".join(words))
            if text[-1].isspace():
                self.writer.separate(_Gap.SPACE)


def _gap_after(tag: str) -> _Gap:
    if tag in ROWS:
        return _Gap.ROW
    return _Gap.LINE if tag in BLOCKS else _Gap.NOTHING


def visible_text(markup: str, stop: threading.Event) -> tuple[str, str]:
    """Return the page's title and its cleaned text: a line for each block element, table rows as `a | b`.

    Raises Abandoned once `stop` is set, and AssertionError for declarations that the parser rejects.
    """
    extractor = _Extractor(stop)
    extractor.feed(markup)
    extractor.close()
    text = collapse_blank_lines(clean_characters("".join(extractor.writer.parts)))
    return clean_characters(" ".join(extractor.title.split())), text


def pages(file: SourceFile) -> Pages:
    """Yield the title, then the visible text."""
    parts = visible_text(decode(file, declared_encoding(file.data)), file.stop)
    yield "\n\n".join(filter(None, parts))


READER = FormatReader((".html", ".htm", ".xhtml"), "text/html", pages)
