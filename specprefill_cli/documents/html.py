"""HTML: the text that a browser would show. Tags are read as a stream, so that nesting may be arbitrarily deep."""

import html
import threading
from collections import Counter
from enum import IntEnum
from html.parser import HTMLParser

from specprefill_cli.documents.cleaning import clean_characters, clean_text
from specprefill_cli.documents.encoding import decode_text
from specprefill_cli.documents.reader import Pages, SourceFile, check_stop

HIDDEN = ("script", "style", "noscript", "template", "title")
PREFORMATTED = ("pre", "textarea")
CELLS = frozenset({"td", "th"})
ROWS = frozenset({"tr", "table"})
BLOCKS = frozenset(
    "address article aside blockquote body br button caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol optgroup option p pre section "
    "select summary tbody textarea tfoot thead ul".split()
)

UNENDED = {"<!--": "-->", "<![": "]>", "<": ">"}


class Gap(IntEnum):
    """The separator of two pieces of text; the strongest of several wins."""

    NOTHING = 0
    SPACE = 1
    LINE = 2
    CELL = 3  # stronger than LINE: a paragraph inside a cell does not break the row
    ROW = 4


class TextExtractor(HTMLParser):
    """Collects the text that a browser would show, and keeps the first title separate.

    open_tags: open elements, the innermost last; depths: number of open elements by tag
    gap: the strongest gap since the last piece of text; cells: table cells that began since then
    """

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self.stop = stop
        self.pieces: list[str] = []
        self.gap, self.cells = Gap.NOTHING, 0
        self.title, self.title_ended = "", False
        self.open_tags: list[str] = []
        self.depths: Counter[str] = Counter()

    def is_inside(self, tags: tuple[str, ...]) -> bool:
        return any(self.depths[tag] for tag in tags)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        check_stop(self.stop)
        self.separate(tag, Gap.CELL if tag in CELLS else Gap.NOTHING)
        if tag not in ("br", "hr"):
            self.open_tags.append(tag)
            self.depths[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element with this tag, and the open elements inside it."""
        while self.depths[tag]:
            closed = self.open_tags.pop()
            self.depths[closed] -= 1
            self.title_ended |= closed == "title"
            self.separate(closed)
            if closed == tag:
                return

    def handle_data(self, data: str) -> None:
        check_stop(self.stop)
        if self.is_inside(HIDDEN):
            if self.depths["title"] and not self.title_ended:
                self.title += data
        elif self.is_inside(PREFORMATTED):
            self.write(data)
        else:
            if data[:1].isspace():
                self.gap = max(self.gap, Gap.SPACE)
            if words := data.split():
                self.write(" ".join(words))
                self.gap = Gap.SPACE if data[-1].isspace() else Gap.NOTHING

    def unknown_decl(self, data: str) -> None:
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))

    def separate(self, tag: str, gap: Gap = Gap.NOTHING) -> None:
        """Record the gap where an element begins or ends."""
        if tag in HIDDEN or self.is_inside(HIDDEN):
            return
        if tag in ROWS:
            gap = Gap.ROW
        elif tag in BLOCKS:
            gap = Gap.LINE
        self.cells = 0 if gap is Gap.ROW else self.cells + (gap is Gap.CELL)
        self.gap = max(self.gap, gap)

    def write(self, text: str) -> None:
        separator = ""
        if self.gap is Gap.ROW:
            # Empty cells before the first filled cell keep their bars, so that columns stay aligned.
            separator = ("\n" if self.pieces else "") + "| " * (self.cells - 1)
        elif self.pieces:
            separator = {Gap.CELL: " " + "| " * self.cells, Gap.LINE: "\n", Gap.SPACE: " "}.get(self.gap, "")
        self.pieces += [separator, text]
        self.gap, self.cells = Gap.NOTHING, 0


def visible_text(markup: str, stop: threading.Event) -> tuple[str, str]:
    """Return the page's title and its cleaned text: a line for each block element, table rows as `a | b`.

    Raises Abandoned once `stop` is set, and AssertionError for declarations that the parser rejects.
    """
    extractor = TextExtractor(stop)
    # At each tag, comment or section that never ends, the parser would search the rest of the page again.
    for opening, closing in UNENDED.items():
        end = markup.rfind(closing) + 1
        markup = markup[:end] + markup[end:].replace(opening, html.escape(opening))
    extractor.feed(markup)
    extractor.close()
    return clean_characters(" ".join(extractor.title.split())), clean_text("".join(extractor.pieces))


def pages(file: SourceFile) -> Pages:
    """Yield the title, then the visible text."""
    title_and_text = visible_text(decode_text(file, is_markup=True), file.stop)
    yield "\n\n".join(filter(None, title_and_text))
