"""What a file really is, judged by its first bytes."""

import codecs
import re
from io import BytesIO
from zipfile import BadZipFile, ZipFile

# The PDF standard lets up to 1024 bytes of other data stand before the header.
HEADER_BYTES = 1024

TEXT_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)

# Only signatures that no plain text starts with.
BINARY_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"(\xb5/\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old or encrypted Microsoft Office file"),
    (b"{\\rtf", "an RTF file"),
    (b"%!PS", "a PostScript file"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x7fELF", "a program (ELF)"),
)
# A text may start with these too, for example one about the format: binary only with a NUL byte in the file.
WORDLIKE_SIGNATURES = (
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"BZh", "a bzip2 archive"),
    (b"GGUF", "a GGUF model"),
    (b"ID3", "an MP3 recording"),
    (b"OggS", "an Ogg recording"),
)

ZIP_SIGNATURE = b"PK\x03\x04"
# Where the parts of an office format lie in its archive, and the suffix of the format.
OFFICE_FOLDERS = {"word/": ".docx", "ppt/": ".pptx", "xl/": ".xlsx", "META-INF/container.xml": ".epub"}
# The archive's first entries name the format even where its end, with the list of entries, is lost.
ARCHIVE_HEADER_BYTES = 4096

_HTML_START = re.compile(rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--[^>]{0,500}-->\s*)?<(?:!doctype\s+html|html)\b", re.I)


def is_pdf(data: bytes) -> bool:
    """Whether `data` is a PDF: its header at the very start, or in the first KiB of a file with a PDF's trailer.

    A text about PDF files may mention the header in its first lines, but has no trailer.
    """
    header = data[:HEADER_BYTES]
    return header.startswith(b"%PDF-") or (b"%PDF-" in header and b"startxref" in data)


def is_html(data: bytes) -> bool:
    """Whether `data` starts like an HTML page (doctype or html element)."""
    return _HTML_START.match(data[:HEADER_BYTES].removeprefix(codecs.BOM_UTF8)) is not None


def binary_format(data: bytes) -> str | None:
    """Name the kind of binary file that `data` is; None for text in any encoding."""
    for signature, kind in BINARY_SIGNATURES + (WORDLIKE_SIGNATURES if b"\x00" in data else ()):
        if data.startswith(signature):
            return kind
    if data.startswith(ZIP_SIGNATURE):
        return "an OpenDocument file" if b"vnd.oasis.opendocument" in data[:ARCHIVE_HEADER_BYTES] else "a ZIP archive"
    if b"\x00" in data and not data.startswith(TEXT_BOMS):
        return "binary data (it holds NUL bytes)"
    return None


def office_suffix(data: bytes) -> str | None:
    """Return the suffix of the office format that `data` is in; None for anything else."""
    if not data.startswith(ZIP_SIGNATURE):
        return None
    header = data[:ARCHIVE_HEADER_BYTES].decode("latin-1")
    if "application/epub+zip" in header:
        return ".epub"
    try:
        with ZipFile(BytesIO(data)) as archive:
            names = archive.namelist()
    except (BadZipFile, ValueError, NotImplementedError):
        return next((suffix for folder, suffix in OFFICE_FOLDERS.items() if folder in header), None)
    return next(
        (OFFICE_FOLDERS[folder] for folder in OFFICE_FOLDERS for name in names if name.startswith(folder)), None
    )
