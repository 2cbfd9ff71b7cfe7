"""HTML: the text that a browser would show. Tags are read as a stream, so that nesting may be arbitrarily deep."""

import html
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from html.parser import HTMLParser
from itertools import chain

from specprefill_cli.documents.cleaning import clean_characters, clean_text, write_number
from specprefill_cli.documents.reader import STRUCK_WARNING, Pages, SourceFile
from specprefill_cli.documents.tables import LINE, NOTHING, SPACE, Table, Writer
from specprefill_cli.documents.text import decode_text

HIDDEN = frozenset("script style noscript template title datalist del s strike annotation video audio canvas".split())
# What may hide or raise an element, in a style without spaces, and with which values it does.
DECLARED = re.compile(
    r"(?<![\w-])(display|visibility|opacity|font-size|text-decoration|left|top|text-indent|vertical-align)(?:-line)?:([^;!]*)(!?)"
)
HIDING = re.compile(
    r"display:none|visibility:(?:hidden|collapse)|(?:opacity|font-size):0(?:px|em|pt|%)?|text-decoration:.*line-through.*"
    r"|(?:left|top|text-indent):-\d{3,}(?:px|em)|vertical-align:super"
)
INHERITED = {"font-size", "visibility"}
STRUCK = re.compile(r"<(?:del|s|strike)[\s>]|line-through", re.IGNORECASE)
# Comments of a style sheet, and its rules for print or narrow screens.
UNUSED_RULES = re.compile(
    r"/\*.*?(?:\*/|\Z)|<!--|@(?!(?:layer|supports|media(?![^{};]{0,200}(?:print|max-|<|prefers|not))[^{};]{0,200}(?:all|screen|width))"
    r"[^{};]{0,200}\{)[^{};@]*(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})", re.DOTALL)  # fmt: skip
# A name of a selector: of a tag, `.class` or `#identifier`; and a state that a click changes, with what stands before it.
NAME = re.compile(r"[.#]?(?:[\w-]|\\.)+")
STATE = re.compile(r"\A.*:(?:checked|target)[^:]*[~+]|:(?:checked|target)", re.DOTALL)
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
CELLS = frozenset({"td", "th"})
LISTS = ("ol", "ul", "menu")
SILENT_INPUTS = ("hidden", "password", "file", "color", "range")
BLOCKS = frozenset(
    "address article aside blockquote body br button caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr iframe legend li main menu nav ol optgroup option p pre section "
    "select summary table tbody td text textarea tfoot th thead tr ul".split()
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
    """An open element. hidden: the properties by which it, or one around it, is; children: number of elements in it so far."""

    def __init__(self, tag: str, names: Set[str], hidden: Set[str] = frozenset(), is_raised: bool = False) -> None:
        self.tag, self.names, self.hidden, self.is_raised, self.children = tag, names, hidden, is_raised, 0


class TextExtractor(HTMLParser):
    """Collects the text that a browser would show, and keeps the first title separate."""

    def __init__(self) -> None:
        super().__init__()
        self.out = Writer()
        self.title, self.title_ended, self.author = "", False, ""
        self.style = self.raised = ""  # text of the open style sheet and raised element
        self.open = [Element("", set())]  # the innermost last
        self.depths: Counter[str] = Counter()  # number of open elements by tag, class and identifier
        # Of style sheets, by whether it hides, and a name: weight, property, whether it hides, names of the element, and around.
        self.rules = defaultdict[tuple[bool, str], list[tuple[list[int], str, bool, Set[str], list[str]]]](list)
        # Number and form of each open list's next item; None: it has none.
        self.lists: list[tuple[int | None, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        while tag in ENDED_BY.get(self.open[-1].tag, ()):
            self.handle_endtag(self.open[-1].tag)
        parent = self.open[-1]
        parent.children += 1
        if parent.tag == "mfrac" and parent.children == 2:
            self.out.flow.write("/")
        if tag == "meta" and attributes.get("name", "").lower() == "author" and attributes.get("content", "").strip():
            self.author = f"Author: {attributes['content']}"
        elif tag == "style":
            self.style = f"@media {attributes.get('media') or 'all'} {{"
        names = {tag, *[f".{name}" for name in attributes.get("class", "").split()], f"#{attributes.get('id')}"}
        hidden = self.hidden_by(tag, names, attributes)
        is_note = "noteref" in attributes.get("epub:type", attributes.get("role", ""))
        is_raised = parent.is_raised or tag == "sup" or is_note or "vertical-align" in hidden
        hidden -= {"vertical-align"}
        if not hidden:
            self.start(tag, attributes)
        if tag not in VOID:
            is_power = parent.tag == "msup" and parent.children == 2
            self.open.append(Element(tag, names, hidden, is_raised or is_power))
            for name in names:
                self.depths[name] += 1

    def hidden_by(self, tag: str, names: Set[str], attributes: Mapping[str, str]) -> Set[str]:
        """The properties by which an element is hidden; text inside a hidden one may be shown again by some."""
        outer, is_closed = self.open[-1].hidden, tag == "dialog" and "open" not in attributes
        if is_closed or tag in HIDDEN or "hidden" in attributes or outer - INHERITED:
            return {"display"}
        own = declared(attributes.get("style", ""))
        # Scripts fade in what an own style makes transparent.
        rules = [([important, 1], name, hides) for name, hides, important in own if name != "opacity"]
        for kind in (True, False):
            named = chain.from_iterable(self.rules.get((kind, name), ()) for name in names)
            rules += [rule[:3] for rule in named if rule[3] <= names and all(map(self.depths.__getitem__, rule[4]))]
            if not (outer or any(hides for *_, hides in rules)):
                return outer
        states = {name: hides for _, name, hides in sorted(rules)}
        # Scripts show a page as soon as it is loaded.
        shown = {name for name, hides in states.items() if not hides or tag in ("html", "body")}
        return (outer - (shown & INHERITED)) | (states.keys() - shown)

    def add_rules(self, sheet: str) -> None:
        """Add what a style sheet hides or shows by names, also of elements around; what a click shows counts as shown."""
        for place, block in enumerate(UNUSED_RULES.sub("", sheet).split("}")):
            selectors, _, body = block.rpartition("{")
            for name, hides, important in declared(body):
                for selector in selectors.rpartition("{")[2].split(","):
                    parts = (selector if hides else STATE.sub("", selector)).replace(">", " ").split()
                    if parts and not NAME.sub("", "".join(parts)):
                        *around, own = ([mark.replace("\\", "") for mark in NAME.findall(part)] for part in parts)
                        marks = [mark[0] for mark in chain(own, *around)]
                        weight = [important, 0, marks.count("#"), marks.count("."), len(marks), *self.getpos(), place]
                        self.rules[hides, min(own)].append((weight, name, hides, set(own), [*chain(*around)]))

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
            first = attributes.get("start", "")[:9]
            number = (int(first) if first.isdecimal() else 1) if tag == "ol" else None
            self.lists.append((number, attributes.get("type", "")))
        elif tag == "li" and self.lists and self.lists[-1][0] is not None:
            (number, form), stated = self.lists[-1], attributes.get("value", "")[:9]
            number = int(stated) if stated.isdecimal() else number or 0
            self.lists[-1] = number + 1, form
            flow.prefix = f"{write_number(number, form)}. "
        elif tag == "iframe":
            flow.write_apart(visible_text(attributes.get("srcdoc", ""))[1], LINE)
        else:
            flow.write_apart(attribute_text(tag, attributes), SPACE)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element with this tag, and the open elements inside it."""
        while self.depths[tag]:
            closed = self.open.pop()
            for name in closed.names:
                self.depths[name] -= 1
            self.title_ended |= closed.tag == "title"
            if closed.is_raised and not self.open[-1].is_raised:
                self.out.flow.write_raised(self.raised, is_power=self.open[-1].tag == "msup")
                self.raised = ""
            if closed.tag == "style" and not (self.depths["noscript"] or self.depths["template"]):
                self.add_rules(f"{self.style}}}")
            elif not closed.hidden:
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
        elif tag == "li":
            self.out.flow.prefix = ""
        if tag in BLOCKS:
            self.out.flow.separate(LINE)

    def handle_data(self, data: str) -> None:
        if self.depths["style"]:
            self.style += data
        elif self.depths["title"] and not self.title_ended:
            self.title += data
        elif self.open[-1].hidden:
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


def declared(style: str) -> list[tuple[str, bool, bool]]:
    """The properties in a style that may hide an element: whether each does, and whether it is important."""
    declarations = DECLARED.findall("".join(style.lower().split()))
    return [(name, HIDING.fullmatch(f"{name}:{value}") is not None, bool(mark)) for name, value, mark in declarations]


def attribute_text(tag: str, attributes: Mapping[str, str]) -> str:
    """What an element shows from its attributes: the value of a field, a tick, the text in place of a picture."""
    kind = attributes.get("type", "text").lower() if tag == "input" else tag
    if kind in ("img", "image", "optgroup"):
        return attributes.get("label" if kind == "optgroup" else "alt", "")
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
    title = "\n".join(filter(None, (" ".join(extractor.title.split()), extractor.author)))
    return clean_characters(title), clean_text("".join(extractor.out.page.pieces))


def shown_text(file: SourceFile, markup: str) -> tuple[str, str]:
    """What `visible_text` finds in markup of a file; a warning for struck text."""
    file.warnings += [STRUCK_WARNING] if STRUCK.search(markup) and STRUCK_WARNING not in file.warnings else []
    return visible_text(markup)


def pages(file: SourceFile) -> Pages:
    """Yield the title, then the visible text."""
    yield "\n\n".join(filter(None, shown_text(file, decode_text(file, is_markup=True))))
