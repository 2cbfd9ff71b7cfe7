"""HTML pages: the text a reader of the page would see."""

import threading
import warnings

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.deadline import run_with_deadline
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.encoding import decode
from specprefill_cli.documents.errors import document_error
from specprefill_cli.documents.reader import FormatReader, Limits

# What the standard library's HTML parser and the tree builder raise on hostile markup: rejected declarations
# (ParserRejectedMarkup is an AssertionError's wrapper), bad character references, too deep or too large trees.
MARKUP_ERRORS = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError, MemoryError)


def read_html(data: bytes, name: str, limits: Limits) -> Document:
    """The title, then the visible text: a line for each block element, table rows as ``a | b``.

    Raises DocumentError: the encoding is not recognised, the markup cannot be parsed, or it takes too long.
    """
    from bs4.builder import ParserRejectedMarkup
    from bs4.dammit import EncodingDetector

    markup, doubts = decode(data, name, EncodingDetector.find_declared_encoding(data, is_html=True))
    try:
        with warnings.catch_warnings():
            # bs4 warns when a page looks like XML or like a file name; the text is extracted all the same.
            warnings.simplefilter("ignore")
            text = run_with_deadline(lambda stop: _visible_text(markup, stop), limits.max_seconds)
    except TimeoutError:
        what = f"parsing took longer than {limits.max_seconds:g} s"
        raise document_error(name, what, "split the page or save it as text") from None
    except (ParserRejectedMarkup, *MARKUP_ERRORS) as error:
        raise document_error(name, f"the HTML cannot be parsed ({error})", "save it again from a browser") from error
    return one_page_document(name, text, READER.media_type, doubts)


def _visible_text(markup: str, stop: threading.Event) -> str:
    from bs4 import BeautifulSoup

    from specprefill_cli.documents.html_text import title_of, visible_lines

    soup = BeautifulSoup(markup, "html.parser")
    parts = (title_of(soup), visible_lines(soup, stop))
    return collapse_blank_lines(clean_characters("\n\n".join(part for part in parts if part)))


READER = FormatReader((".html", ".htm", ".xhtml"), "text/html", read_html)
