"""PDFs made on the spot."""

from collections.abc import Callable

import pytest
from fpdf import FPDF
from fpdf.enums import EncryptionMethod
from PIL import Image

MakePdf = Callable[..., bytes]


@pytest.fixture(scope="session")
def make_pdf() -> MakePdf:
    """`make_pdf(texts, password=None, owner=None, method=...)`: one page a text, an image page for None."""

    def make(
        texts: list[str | None],
        password: str | None = None,
        owner: str | None = None,
        method: EncryptionMethod = EncryptionMethod.RC4,
    ) -> bytes:
        pdf = FPDF()
        if owner is not None:
            pdf.set_encryption(owner_password=owner, user_password=password or "", encryption_method=method)
        for text in texts:
            pdf.add_page()
            if text is None:
                pdf.image(Image.new("RGB", (8, 8), "red"), w=20)
            else:
                pdf.set_font("helvetica", size=12)
                pdf.multi_cell(0, 6, text)
        return bytes(pdf.output())

    return make
