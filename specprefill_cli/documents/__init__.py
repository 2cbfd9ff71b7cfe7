"""Files -> documents: text, with the character range of each page."""

from specprefill_cli.documents.collect import read_collection, read_documents
from specprefill_cli.documents.document import Document, Page, page_ranges
from specprefill_cli.documents.reader import Limits
from specprefill_cli.documents.registry import KNOWN_SUFFIXES, read_document
from specprefill_cli.errors import DocumentError

__all__ = [
    "KNOWN_SUFFIXES",
    "Document",
    "DocumentError",
    "Limits",
    "Page",
    "page_ranges",
    "read_collection",
    "read_document",
    "read_documents",
]
