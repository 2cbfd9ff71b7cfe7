"""HTML: the text that a browser would show. Tags are read as a stream, so that nesting may be arbitrarily deep."""

import html
import re
from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser

from specprefill_cli.documents.cleaning import clean_characters, clean_text
from specprefill_cli.documents.reader import STRUCK_WARNING, Pages, SourceFile
from specprefill_cli.documents.tables import LINE, NOTHING, SPACE, Table, Writer, span_of
from specprefill_cli.documents.text import decode_text

HIDDEN = frozenset({"script", "style", "noscript", "template", "title", "datalist", "del", "s", "strike"})
HIDING = re.compile(
    r"(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|(?:opacity|font-size)\s*:\s*0(?:px|em|pt|%)?\s*(?:;|!|$)"
    r"|text-decoration[\w-]*\s*:[^;]*line-through|(?:left|top|text-indent)\s*:\s*-\d{3,}(?:px|em))",
    re.IGNORECASE,
)
STRUCK = re.compile(r"<(?:del|s|strike)[\s>]|line-through", re.IGNORECASE)
RAISED = re.compile(r"vertical-align\s*:\s*super", re.IGNORECASE)
# Rules of a style sheet, without those for print or narrow screens.
CONDITIONAL_RULES = re.compile(r"/\*.*?\*/|@[^{};]*(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})", re.DOTALL)
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
CELLS = frozenset({"td", "th"})
LISTS = ("ol", "ul", "menu")
SILENT_INPUTS = ("hidden", "password", "file", "color", "range")
BLOCKS = frozenset(
    "address article aside blockquote body br button caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr iframe legend li main menu nav ol optgroup option p pre section "
    "select summary table tbody td textarea tfoot th thead tr ul".split()
)
# Elements that end without an end tag where one of these begins.
ENDED_BY = {
    "p": BLOCKS - {"br", "button"},
    **dict.fromkeys(("td", "th"), CELLS | {"tr"}),
    **{tag: frozenset({tag}) for tag in ("tr", "li", "option")},
    **dict.fromkeys(("dt", "dd"), frozenset({"dt", "dd"})),
}
# Tables in tables; deeper ones are read as blocks.
DEEPEST_TABLE = 20
UNENDED = {"<!--": "-->", "<![": "]>", "<": ">"}


class Element:
    """An open element. is_hidden, is_raised: whether it or one around it is; children: number of elements in it so far."""

    def __init__(self, tag: str, is_hidden: bool = False, is_raised: bool = False) -> None:
        self.tag, self.is_hidden, self.is_raised, self.children = tag, is_hidden, is_raised, 0


class TextExtractor(HTMLParser):
    """Collects the text that a browser would show, and keeps the first title separate."""

    def __init__(self) -> None:
        super().__init__()
        self.out = Writer()
        self.title, self.title_ended, self.author = "", False, ""
        self.style = self.raised = ""  # text of the open style sheet and raised element
        self.open = [Element("")]  # the innermost last
        self.depths: Counter[str] = Counter()  # number of open elements by tag
        self.hidden_names: set[str] = set()  # classes and identifiers that the style sheet hides
        self.lists: list[int] = []  # number of the next item of each open list; 0 for a list without numbers

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        while tag in ENDED_BY.get(self.open[-1].tag, ()):
            self.handle_endtag(self.open[-1].tag)
        parent = self.open[-1]
        parent.children += 1
        if tag == "meta" and attributes.get("name", "").lower() == "author":
            self.author = attributes.get("content", "")
        is_hidden = parent.is_hidden or self.is_hidden(tag, attributes)
        if not is_hidden:
            self.start(tag, attributes)
        if tag not in VOID:
            is_power = parent.tag == "msup" and parent.children == 2
            is_raised = tag == "sup" or is_power or RAISED.search(attributes.get("style", "")) is not None
            self.open.append(Element(tag, is_hidden, parent.is_raised or is_raised))
            self.depths[tag] += 1

    def is_hidden(self, tag: str, attributes: Mapping[str, str]) -> bool:
        names = {f".{name}" for name in attributes.get("class", "").split()} | {f"#{attributes.get('id')}"}
        return (
            tag in HIDDEN
            or "hidden" in attributes
            or HIDING.search(attributes.get("style", "")) is not None
            or (tag == "dialog" and "open" not in attributes)
            or not names.isdisjoint(self.hidden_names)
        )

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        tables = self.out.tables
        if tag == "table" and len(tables) < DEEPEST_TABLE:
            tables.append(Table())
        elif tables and tag == "tr":
            tables[-1].start_row()
        elif tables and tag in CELLS:
            is_head = tag == "th" or self.depths["thead"] > 0
            tables[-1].start_cell(is_head, attributes.get("colspan", ""), attributes.get("rowspan", ""))
        flow = self.out.flow
        if tag in BLOCKS:
            flow.separate(LINE)
        if tag in LISTS:
            self.lists.append(span_of(attributes.get("start", "")) if tag == "ol" else 0)
        elif tag == "li" and self.lists and self.lists[-1]:
            number = span_of(attributes.get("value", "")) if "value" in attributes else self.lists[-1]
            self.lists[-1] = number + 1
            flow.prefix = f"{number}. "
        elif tag == "iframe":
            flow.write_apart(visible_text(attributes.get("srcdoc", ""))[1], LINE)
        else:
            flow.write_apart(attribute_text(tag, attributes), SPACE)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element with this tag, and the open elements inside it."""
        while self.depths[tag]:
            closed = self.open.pop()
            self.depths[closed.tag] -= 1
            self.title_ended |= closed.tag == "title"
            if closed.is_raised and not self.open[-1].is_raised:
                if self.open[-1].tag == "msup":
                    self.out.flow.gap = NOTHING
                    self.out.flow.write(f"^{self.raised.strip()}")
                else:
                    self.out.flow.write_raised(self.raised)
                self.raised = ""
            if closed.tag == "style":
                for selectors, body in RULE.findall(CONDITIONAL_RULES.sub("", self.style)):
                    if HIDING.search(body):
                        self.hidden_names.update(name.strip() for name in selectors.split(","))
                self.style = ""
            elif not closed.is_hidden:
                self.end(closed.tag)
            if closed.tag == tag:
                return

    def end(self, tag: str) -> None:
        if self.out.tables and tag in CELLS:
            self.out.tables[-1].end_cell()
        elif self.out.tables and tag == "table" and self.depths["table"] < DEEPEST_TABLE:
            self.out.end_table()
        elif self.lists and tag in LISTS:
            self.lists.pop()
        if tag in BLOCKS:
            self.out.flow.separate(LINE)

    def handle_data(self, data: str) -> None:
        if self.depths["style"]:
            self.style += data
        elif self.depths["title"] and not self.title_ended:
            self.title += data
        elif self.open[-1].is_hidden:
            return
        elif self.open[-1].is_raised:
            self.raised += data
        elif self.depths["pre"] or self.depths["textarea"]:
            self.out.flow.write(data)
        else:
            if data[:1].isspace():
                self.out.flow.separate(SPACE)
            if words := data.split():
                self.out.flow.write(" ".join(words))
                self.out.flow.gap = SPACE if data[-1].isspace() else NOTHING

    def close(self) -> None:
        super().close()
        while len(self.open) > 1:
            self.handle_endtag(self.open[-1].tag)


def attribute_text(tag: str, attributes: Mapping[str, str]) -> str:
    """What an element shows from its attributes: the value of a field, a tick, the text in place of a picture."""
    kind = attributes.get("type", "text").lower() if tag == "input" else tag
    if kind in ("img", "image"):
        return attributes.get("alt", "")
    if kind in ("checkbox", "radio"):
        return "[x]" if "checked" in attributes else "[ ]"
    if kind == "option":
        return "[x]" if "selected" in attributes else ""
    return attributes.get("value", "") if tag == "input" and kind not in SILENT_INPUTS else ""


def visible_text(markup: str) -> tuple[str, str]:
    """The title and author, and the cleaned text. Raises AssertionError for impossible declarations."""
    extractor = TextExtractor()
    # At each tag, comment or section that never ends, the parser would search the rest of the page again.
    for opening, closing in UNENDED.items():
        end = markup.rfind(closing) + 1
        markup = markup[:end] + markup[end:].replace(opening, html.escape(opening))
    extractor.feed(markup)
    extractor.close()
    author = f"Author: {extractor.author}" if extractor.author.strip() else ""
    title = "\n".join(filter(None, (" ".join(extractor.title.split()), author)))
    return clean_characters(title), clean_text(extractor.out.text)


def shown_text(file: SourceFile, markup: str) -> tuple[str, str]:
    """What `visible_text` finds in markup of a file; a warning for struck text."""
    file.warnings += [STRUCK_WARNING] * (STRUCK.search(markup) is not None and STRUCK_WARNING not in file.warnings)
    return visible_text(markup)


def pages(file: SourceFile) -> Pages:
    """Yield the title, then the visible text."""
    yield "\n\n".join(filter(None, shown_text(file, decode_text(file, is_markup=True))))
