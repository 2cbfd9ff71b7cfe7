"""Makes PDFs."""

from collections.abc import Callable

import pytest

from tests.helpers import document_files


@pytest.fixture(scope="session")
def make_pdf() -> Callable[..., bytes]:
    """`make_pdf(texts, password=None, owner=None, method=...)`: a page for each text, an image page for None."""
    return document_files.pdf
