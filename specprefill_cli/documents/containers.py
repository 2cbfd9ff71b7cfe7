"""Files that hold other files: ZIP archives of XML with guards against hostile ones (EPUB, OpenDocument), mail (also mbox)."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from email import message_from_bytes, policy
from html import escape
from io import BytesIO
from itertools import chain
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.documents.html import shown_text
from specprefill_cli.documents.reader import LIMITS, Pages, SourceFile
from specprefill_cli.documents.tables import span_of
from specprefill_cli.documents.text import decode_as, decode_text

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
HEADERS = ("From", "To", "Cc", "Date", "Subject")
MAIL_BORDER = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\n(?=[\w-]+:)")
# A linked style sheet: its attributes, and its address among them.
LINK = re.compile(r"""<link\b([^>]*?\bhref=["']?([^"'\s>]+)[^>]*?)/?>""", re.IGNORECASE)
SIGNATURES = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")
# Design, where it has an identifier or an address; kinds of text that nobody sees; the length of a stub, in bytes.
DESIGN, UNSHOWN, STUB = ("image/", "font/", "text/css", "text/javascript"), ("css", "javascript", "calendar"), 200
# Elements of OpenDocument that HTML names otherwise, and those without text of their own.
TAGS = {"h": "h2", "list-item": "li", "table-header-rows": "thead", "table-row": "tr", "table-cell": "td", "line-break": "br",
        "note-citation": "sup", "title": "div", "desc": "div"}  # fmt: skip
PLAIN = {"s": " ", "tab": " "} | dict.fromkeys(("covered-table-cell", "tracked-changes", "annotation", "forms"), "")


def open_archive(file: SourceFile) -> ZipFile:
    """Open an archive. Raises DocumentError for a ZIP bomb; zipfile unpacks no more than it declares."""
    archive = ZipFile(BytesIO(file.data))
    growth = sum(entry.file_size for entry in archive.infolist()) - len(file.data)
    if growth > LIMITS.max_growth:
        raise file.error(f"unpacks to {growth:,} more bytes, the limit is {LIMITS.max_growth:,}", "split it")
    return archive


def parse_entry(archive: ZipFile, entry: str) -> Element:
    """Parse an XML entry. Raises ParseError for entities that expand without bound: expat limits them."""
    return ElementTree.fromstring(archive.read(entry))


def entry_name(folder: str, link: str) -> str:
    """The name of the entry that a link leads to. folder: of the entry with the link."""
    return posixpath.normpath(posixpath.join("/", folder, unquote(urlsplit(link).path))).lstrip("/")


def name_of(tag: str) -> str:
    """The name of a tag or an attribute, without the namespace."""
    return tag.rpartition("}")[2]


def opendocument_pages(file: SourceFile) -> Pages:
    """Yield the text, or each sheet or slide, of an OpenDocument, as HTML with its styles shows it."""
    with open_archive(file) as archive:
        content = parse_entry(archive, "content.xml")
    filled = (part for part in content.iterfind(".//{*}table-row") if "".join(part.itertext()).strip())
    repeated = sum(span_of(text) - 1 for part in filled for key, text in part.items() if key.endswith("rows-repeated"))
    file.check_room(100 * repeated)
    looks = ""
    for style in content.iterfind("{*}automatic-styles/{*}style"):
        value = {name_of(key): text for part in (*style, style) for key, text in part.items()}
        struck = "line-through" * (value.get("text-line-through-style", "none") != "none")
        place, shown = value.get("text-position", "")[:5], value.get("display", "")
        looks += f".{value.get('name')}{{text-decoration:{struck};vertical-align:{place};display:{shown}}}"
    body = next(content.iterfind("{*}body/*"))
    sheets = body.findall("{*}table") if name_of(body.tag) == "spreadsheet" else []
    for part in body.findall("{*}page") or sheets or [body]:
        title = "".join(f"# {escape(text)}" for key, text in part.items() if sheets and name_of(key) == "name")
        yield shown_text(file, f"<style>{looks}</style>{title}{markup_of(part)}")[1]


def markup_of(element: Element) -> str:
    """An element of an OpenDocument as HTML. Empty rows part tables."""
    name, children = name_of(element.tag), list(element)
    value = {name_of(key): text for key, text in element.items()}
    covers = any(name_of(child.tag) == "covered-table-cell" for child in children)
    while name == "table-row" and children and not "".join(children[-1].itertext()).strip():
        children.pop()
    if name in PLAIN or (name == "table-row" and not (children or covers)):
        return PLAIN.get(name, "</table><table>")
    if name == "note-body":
        return escape(f" ({' '.join(element.itertext())})")
    tag, columns = TAGS.get(name, name), value.get("number-columns-spanned") or value.get("number-columns-repeated")
    spans = f'colspan="{columns}" rowspan="{value.get("number-rows-spanned")}"'
    mark = ("#" * min(int(value.get("outline-level", 0)), 6) + " ").lstrip(" ")
    start = f'<{tag} class="{value.get("style-name")}" {spans}>{mark}{escape(element.text or "")}'
    inner = "".join(f"{markup_of(child)}{escape(child.tail or '')}" for child in children)
    return f"{start}{inner}</{tag}>" * span_of(value.get("number-rows-repeated", ""))


def book_pages(file: SourceFile) -> Pages:
    """Yield the chapters in the order of the spine. Raises DocumentError for a book with copy protection."""
    with open_archive(file) as book:
        entries = set(book.namelist())
        package_name = next(parse_entry(book, CONTAINER).iterfind(".//{*}rootfile")).get("full-path", "")
        package = parse_entry(book, package_name)
        links = {item.get("id"): item.get("href", "") for item in package.iterfind(".//{*}item")}
        spine = (links.get(itemref.get("idref")) for itemref in package.iterfind(".//{*}itemref"))
        chapters = [entry_name(posixpath.dirname(package_name), link) for link in spine if link is not None]
        # In many books only the fonts are encrypted.
        locks = parse_entry(book, ENCRYPTION).iterfind(".//{*}CipherReference") if ENCRYPTION in entries else ()
        if not {entry_name("", lock.get("URI", "")) for lock in locks}.isdisjoint(chapters):
            raise file.error("the book is protected against copying (DRM)", "use an unprotected copy")
        if missing := [chapter for chapter in chapters if chapter not in entries]:
            file.warnings.append(f"{len(missing)} of {len(chapters)} chapters are missing, the first: {missing[0]}")
        authors = (f"Author: {author.text}" for author in package.iterfind(".//{*}creator") if author.text)
        head = "\n".join(filter(None, [package.findtext(".//{*}title"), *authors]))
        for chapter in filter(entries.__contains__, chapters):
            page = SourceFile(book.read(chapter), f"{file.name}:{chapter}")
            _, text = shown_text(page, decode_text(page, is_markup=True))
            file.warnings += [f"{chapter}: {warning}" for warning in page.warnings]
            yield file.page_text([f"{head}\n\n{text}" if head else text])
            head = ""


def mail_pages(file: SourceFile) -> Pages:
    """Yield the head and the texts, of HTML what a browser shows, then a page for each attached document that can be read."""
    message: Any = message_from_bytes(file.data, policy=policy.default.clone(refold_source="none"))
    parts = parts_of(message)
    head = "\n".join(f"{name}: {value}" for name in HEADERS if (value := header_of(message, name)))
    styles = (part for part in parts if part.get_content_type() == "text/css")
    sheets = {part["Content-Location"]: part.get_payload(decode=True).decode(errors="replace") for part in styles}
    yield "\n\n".join(filter(None, [head, *(part_text(file, part, sheets) for part in parts if is_text(part))]))
    for part in parts:
        kind = part.get_content_type()
        is_design = kind.startswith(DESIGN) and (part["Content-ID"] or part["Content-Location"])
        if is_text(part) or is_design or kind in SIGNATURES:
            continue
        data = b"".join(map(bytes, part.get_payload())) if part.is_multipart() else part.get_payload(decode=True)
        name = part.get_filename() or ("message.eml" if kind == "message/rfc822" else kind)
        if text := file.attached(name, data or b""):
            yield text


def header_of(message: Any, name: str) -> str:
    """A header of a mail; as it stands in the file where the library fails on it, as on some damaged addresses."""
    try:
        return str(message[name] or "")
    except (AttributeError, LookupError, ValueError):
        value = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
        return str(value).encode(errors="surrogateescape").decode(errors="replace")


def mailbox_pages(file: SourceFile) -> Pages:
    """Yield the pages of each mail of a mailbox (mbox)."""
    for mail in MAIL_BORDER.split(file.data)[1:]:
        yield from mail_pages(replace(file, data=mail))


def parts_of(message: Any) -> list[Any]:
    """The parts of a mail: of alternative forms that with a table, or the first long form, and each form's attachments."""
    if message.get_content_maintype() != "multipart" or not message.is_multipart():
        return [message]
    forms = [parts_of(part) for part in message.iter_parts()]
    if message.get_content_subtype() == "alternative":
        texts = ([part for part in form if is_text(part)] for form in forms)
        bodies = ((b"".join(part.get_payload(decode=True) for part in form), form) for form in texts)
        filled = (((b"</td" in body, min(len(body), STUB)), form) for body, form in bodies if body.strip())
        _, chosen = max(filled, key=lambda pair: pair[0], default=((False, 0), []))
        forms = [chosen, *([part for part in form if not is_text(part)] for form in forms)]
    return list(chain.from_iterable(forms))


def is_text(part: Any) -> bool:
    """Whether a part is shown as text of the mail."""
    return part.get_content_maintype() == "text" and not (part.get_filename() or part.get_content_subtype() in UNSHOWN)


def part_text(file: SourceFile, part: Any, sheets: Mapping[str, str]) -> str:
    """The text of a part in the encoding that it names, or else the one that fits, with a warning. sheets: by their addresses."""
    payload, is_html = part.get_payload(decode=True) or b"", "html" in part.get_content_subtype()
    try:
        text = decode_as(payload, part.get_content_charset("ascii"))
    except (LookupError, ValueError):
        text = decode_text(SourceFile(payload, file.name, warnings=file.warnings), is_html)
    if not is_html:
        return clean_text(text).strip()
    text = LINK.sub(lambda link: f"<style{link[1]}>{sheets[link[2]]}</style>" if link[2] in sheets else link[0], text)
    return shown_text(file, text)[1]
