"""DOCX and PPTX: both write paragraphs as `p`, text as `t`, and tables as `tbl`, `tr` and `tc`."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.containers import entry_name, name_of, open_archive, parse_entry
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.reader import STRUCK_WARNING, Pages, SourceFile
from specprefill_cli.documents.styles import Styles, attribute, heading_level, own_properties
from specprefill_cli.documents.tables import BLANK, LINE, NOTHING, SPACE, Table, Writer
from specprefill_cli.documents.xlsx import chart_lines

# Not text of the document: deleted and moved text, the second copy of a drawing for old programs, and properties.
SKIPPED = {"del", "moveFrom", "Fallback", "pPr", "rPr", "tblPr", "sectPr", "sdtPr"}
OFF = ("0", "false", "off", "none")
CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
# Characters of symbol fonts: Greek letters, signs, arrows, ticked and empty boxes.
SYMBOLS = {
    "Symbol": dict(zip("abcdefghijklmnopqrstuvwxyzDFGLPQSWY\xa3\xae\xb0\xb1\xb3\xb4\xb7\xb8\xb9\xbb\xd7",
                       "αβχδεφγηιϕκλµνοπθρστυϖωξψζΔΦΓΛΠΘΣΩΨ≤→°±≥\xd7•÷≠≈⋅", strict=True)),
    "Wingdings": {"\xfe": "[x]", "\xfd": "[x]", "x": "[x]", "\xa8": "[ ]", "o": "[ ]", "\xfc": "✓", "\xfb": "✗", "\xe0": "→"},
    "Wingdings 2": {"R": "[x]", "S": "[x]", "\xa3": "[ ]", "P": "✓", "O": "✗"},
}  # fmt: skip
STRUCK = re.compile(rb"<w:d?strike(?: w:val=\"(?:1|true|on)\")?\s*/>|strike=\"(?:sng|dbl)Strike\"")


def document_pages(file: SourceFile) -> Pages:
    """Read headings as `#`, list items as `-`, headers and footers once, notes and drawings at the end."""
    with open_archive(file) as archive:
        main = main_part(archive)
        file.warnings += [STRUCK_WARNING] if STRUCK.search(archive.read(main)) else []
        styles = Styles(parse_related(archive, main, "styles"), parse_related(archive, main, "numbering"))
        # Sections often share a header or footer: write each text once.
        margins = [text_of(margin, styles).strip() for margin in parse_related(archive, main, "header", "footer")]
        body = text_of(parse_entry(archive, main), styles)
        notes = [text_of(part, styles) for part in parse_related(archive, main, "footnotes", "endnotes")]
        parts = [*filter(None, dict.fromkeys(margins)), body, *notes]
        yield file.page_text([*property_lines(archive), "\n\n".join(parts), *drawing_lines(file, archive, main)])


def slide_pages(file: SourceFile) -> Pages:
    """Yield, for each slide, its text in the file's order, charts as tables, then the notes."""
    with open_archive(file) as archive:
        presentation = main_part(archive)
        entries = {identifier: entry for identifier, _, entry in relations(archive, presentation)}
        # Only an `id` with a namespace refers to an entry; the plain `id` is the slide's own.
        slide_elements = parse_entry(archive, presentation).iterfind(".//{*}sldId")
        slides = [entries[value] for slide in slide_elements for key, value in slide.items() if key.endswith("}id")]
        file.warnings += [STRUCK_WARNING] if any(STRUCK.search(archive.read(slide)) for slide in slides) else []
        empty = []
        for number, slide in enumerate(slides, start=1):
            title = property_lines(archive) if number == 1 else ()
            body = text_of(parse_entry(archive, slide))
            lines = [body, *drawing_lines(file, archive, slide), *notes_of(archive, slide)]
            text = file.page_text([*title, *filter(None, lines)])
            empty += [] if text.strip() else [number]
            yield text
    file.warnings += [f"no text on {page_ranges(empty)} (pictures?)"] if empty else []


def notes_of(archive: ZipFile, slide: str) -> Iterator[str]:
    """Yield the speaker's notes; the other shapes on their page are the slide's picture and its number."""
    for shape in chain.from_iterable(page.iterfind(".//{*}sp") for page in parse_related(archive, slide, "notesSlide")):
        notes = text_of(shape).strip()
        if notes and any(holder.get("type") == "body" for holder in shape.iterfind(".//{*}ph")):
            yield f"Notes: {notes}"


def property_lines(archive: ZipFile) -> Iterator[str]:
    """Yield the title and the author that a document's properties name, if they name a title."""
    for properties in parse_related(archive, "", "core-properties"):
        title, author = (properties.findtext(f".//{{*}}{name}") or "" for name in ("title", "creator"))
        if title.strip():
            yield from (title, *([f"Author: {author}"] if author.strip() else []), "")


def relations(archive: ZipFile, entry: str) -> list[tuple[str, str, str]]:
    """The entries that `entry` refers to: identifier, type of the relation, and name of each. entry: "" is the archive."""
    folder, name = posixpath.split(entry)
    listing = posixpath.join(folder, "_rels", f"{name}.rels")
    if listing not in archive.namelist():
        return []
    links = (link for link in parse_entry(archive, listing) if link.get("TargetMode") != "External")
    fields = ([link.get(name, "") for name in ("Id", "Type", "Target")] for link in links)
    return [(identifier, kind.rpartition("/")[2], entry_name(folder, target)) for identifier, kind, target in fields]


def parse_related(archive: ZipFile, entry: str, *types: str) -> list[Element]:
    """Parse the entries that `entry` refers to by relations of these types."""
    return [parse_entry(archive, name) for _, kind, name in relations(archive, entry) if kind in types]


def main_part(archive: ZipFile) -> str:
    """The entry that holds a document's body, or the list of slides."""
    return next((entry for _, kind, entry in relations(archive, "") if kind == "officeDocument"), "officeDocument")


def drawing_lines(file: SourceFile, archive: ZipFile, entry: str) -> Iterator[str]:
    """Yield the texts of the diagrams and of other files inside an entry, and the tables of the charts that it shows."""
    inner = (name for _, kind, name in relations(archive, entry) if kind in ("aFChunk", "package"))
    yield from (file.attached(name, archive.read(name)) for name in inner)
    yield from map(text_of, parse_related(archive, entry, "diagramData"))
    for chart in parse_related(archive, entry, "chart"):
        yield from map(text_of, chart.iterfind(".//{*}title"))
        yield from chart_lines(chart)


def text_of(parent: Element, styles: Styles | None = None) -> str:
    """The text of an element: paragraphs and rows of tables as lines, and the texts in place of pictures."""
    writer = OfficeWriter(styles or Styles())
    writer.write(parent)
    return "".join(writer.page.pieces)


class OfficeWriter(Writer):
    """Collects the text of elements. in_header: whether the open row is a table's header."""

    def __init__(self, styles: Styles) -> None:
        super().__init__()
        self.styles, self.in_header = styles, False
        self.paragraph_style: Mapping[str, str] = {}
        # Of each open field, whether its result has begun; the mark of the open note.
        self.fields: list[bool] = []
        self.note_mark = ""

    def write_fldChar(self, mark: Element) -> None:  # noqa: N802
        kind = attribute(mark, "fldCharType")
        if kind == "begin":
            self.write(mark)
            self.fields.append(False)
        elif self.fields and kind == "separate":
            self.fields[-1] = True
        elif self.fields and kind == "end":
            self.fields.pop()

    def write(self, parent: Element) -> None:
        """Write the elements inside another: each by the method of its name, if there is one."""
        for element in parent:
            name = name_of(element.tag)
            # The result of a field inside another's instruction is not text.
            if name in ("t", *CHARACTERS) and False in self.fields[:-1]:
                continue
            if name in CHARACTERS or (name == "t" and not len(element)):
                self.flow.write(CHARACTERS.get(name) or element.text or "")
            elif name not in SKIPPED:
                # Of the two names of a picture in a paragraph, one counts.
                if name == "docPr" or (name == "cNvPr" and "presentationml" in element.tag):
                    prefix, self.flow.prefix = self.flow.prefix, ""
                    self.flow.write_apart(element.get("descr", ""), LINE)
                    self.flow.prefix = prefix
                getattr(self, f"write_{name.replace('endnote', 'footnote')}", self.write)(element)

    def write_tbl(self, table: Element) -> None:
        self.tables.append(Table())
        self.write(table)
        self.end_table()

    def write_tr(self, row: Element) -> None:
        self.tables[-1].start_row()
        self.in_header = row.find("{*}trPr/{*}tblHeader") is not None
        if before := attribute(row.find("{*}trPr/{*}gridBefore"), "val"):
            self.tables[-1].start_cell(self.in_header, before, "")
        self.write(row)

    def write_p(self, paragraph: Element) -> None:
        """Write a paragraph as a line, marked as a heading or list item; an empty one as a blank line."""
        properties, outer = own_properties(paragraph), self.paragraph_style
        self.paragraph_style = self.styles.of_style(properties)
        properties = {**self.paragraph_style, **properties}
        is_deleted = paragraph.find("{*}pPr/{*}rPr/{*}del") is not None
        level, mark = heading_level(properties), "" if is_deleted else self.styles.item_mark(properties)
        self.flow.separate(BLANK if level else LINE)
        # A text box inside a paragraph may come first.
        outer_prefix, signs = self.flow.prefix, ("#" * level, "" if level and mark == "-" else mark)
        self.flow.prefix = "".join(f"{sign} " for sign in signs if sign)
        written = len(self.flow.pieces)
        self.write(paragraph)
        self.flow.separate(LINE if len(self.flow.pieces) > written else BLANK)
        self.flow.prefix, self.paragraph_style = outer_prefix, outer

    def write_r(self, run: Element) -> None:
        properties = own_properties(run)
        properties = {**self.paragraph_style, **self.styles.of_style(properties), **properties}
        is_struck = attribute(run.find("{*}rPr"), "strike") not in ("", "noStrike")
        if is_struck or any(properties.get(name, "off") not in OFF for name in ("vanish", "strike", "dstrike")):
            return
        is_superscript = properties.get("vertAlign") == "superscript"
        if is_superscript or attribute(run.find("{*}rPr"), "baseline")[:1] > "0":
            self.flow.write_raised(text_of(run, self.styles))
        else:
            self.write(run)

    def write_footnoteReference(self, mark: Element) -> None:  # noqa: N802
        if attribute(mark, "customMarkFollows") in ("", *OFF):
            self.flow.write(self.styles.note_mark(mark))

    def write_footnote(self, note: Element) -> None:
        self.note_mark = self.styles.note_mark(note)
        self.write(note)

    def write_footnoteRef(self, _mark: Element) -> None:  # noqa: N802
        if self.note_mark:
            self.flow.write(self.note_mark)

    def write_sym(self, symbol: Element) -> None:
        """Write a character by its code, or by its place in a symbol font."""
        code = int(attribute(symbol, "char") or "20", 16)
        character = chr(code & 0xFF if 0xF000 <= code < 0xF100 else code)
        self.flow.write(SYMBOLS.get(attribute(symbol, "font"), {}).get(character, character))

    def write_checkBox(self, box: Element) -> None:  # noqa: N802
        marks = [*box.iterfind("{*}checked"), *box.iterfind("{*}default")]
        self.flow.write("[ ]" if not marks or attribute(marks[0], "val") in OFF else "[x]")

    def write_ddList(self, choice: Element) -> None:  # noqa: N802
        entries = [attribute(entry, "val") for entry in choice.iterfind("{*}listEntry")]
        self.flow.write("".join(entries[int(attribute(choice.find("{*}result"), "val") or 0) :][:1]))

    def write_sSup(self, power: Element) -> None:  # noqa: N802
        self.write_formula(power, "e", "^", "sup")

    def write_f(self, fraction: Element) -> None:
        # Behind a whole number.
        self.flow.separate(SPACE if "".join(self.flow.pieces[-1:])[-1:].isdigit() else NOTHING)
        self.write_formula(fraction, "num", "/", "den")

    def write_formula(self, formula: Element, first: str, sign: str, second: str) -> None:
        """Write two parts of a formula with a sign between them, longer ones in brackets."""
        parts = [text_of(part).strip() for name in (first, second) for part in formula.iterfind(f"{{*}}{name}")]
        self.flow.write(sign.join(part if re.fullmatch(r"[\w.,]*", part) else f"({part})" for part in parts))

    def write_tc(self, cell: Element) -> None:
        """Write a cell. In slides the cells that another one covers are there, too."""
        if "1" not in (cell.get("hMerge"), cell.get("vMerge")):
            merge = cell.find("{*}tcPr/{*}vMerge")
            is_above = merge is not None and attribute(merge, "val") != "restart"
            columns = attribute(cell.find("{*}tcPr/{*}gridSpan"), "val") or cell.get("gridSpan", "")
            self.tables[-1].start_cell(self.in_header, columns, cell.get("rowSpan", ""), is_above=is_above)
            self.write(cell)
            self.tables[-1].end_cell()
