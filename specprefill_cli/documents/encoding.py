"""Bytes -> text: which encoding a file is in."""

import codecs
import re
from contextlib import suppress

from specprefill_cli.documents.reader import SourceFile

# The UTF-32 marks come first: the little-endian one starts with the mark of UTF-16.
BOM_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# The declaration of an XML or HTML file stands near its beginning.
DECLARATION_BYTES = 4096
DECLARATION = re.compile(
    rb"""<(?:\?xml|meta)[^>]{0,400}?[\s;"'](?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
# Python codecs that are no file encodings (some take quadratic time): never believed when a page declares them. Nor is none.
NOT_FILE_ENCODINGS = frozenset({"", "idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7"})
# Damaged UTF-8 is likelier than another encoding if it holds at least this many valid multi-byte characters for each
# damaged place; text in another encoding holds next to none. Where the file declares UTF-8, fewer are enough.
VALID_PER_DAMAGE, VALID_PER_DAMAGE_DECLARED = 4, 1
# The web's most common single-byte encoding: it wins when the guess cannot tell it from its neighbours.
COMMON_ENCODING = "cp1252"
# Encodings of Classic Mac OS, DOS and mainframes are hardly written today, but the guess prefers them for short texts
# (mac_cyrillic for Cyrillic in cp1251, cp775 for German in cp1252).
EXTINCT_ENCODINGS = (
    "mac_cyrillic mac_greek mac_iceland mac_latin2 mac_roman mac_turkish cp437 cp775 cp850 cp852 cp857 cp858 cp860 cp861 "
    "cp863 cp865 cp037 cp273 cp500 cp1026 cp1140 hp_roman8"
).split()


def decode(file: SourceFile, is_markup: bool = False) -> str:
    """Decode a file of text, and warn about doubtful characters. Raises DocumentError when no encoding fits.

    Tried in this order: byte order mark, UTF-8, the encoding that HTML or XML declares, UTF-8 with a few damaged places, a
    guess; the last two warn.
    """
    for mark, encoding in BOM_ENCODINGS.items():
        if file.data.startswith(mark):
            return decode_with_replacement(file, encoding)
    declared = declared_encoding(file.data) if is_markup else ""
    with suppress(UnicodeDecodeError):
        return file.data.decode("utf-8")
    # A codec that does not give text, or bytes that are not in that encoding.
    with suppress(LookupError, ValueError):
        if declared not in NOT_FILE_ENCODINGS:
            return file.data.decode(declared, errors="replace" if declared == COMMON_ENCODING else "strict")
    text = file.data.decode("utf-8", errors="replace")
    damages = text.count("\ufffd") - file.data.count("\ufffd".encode())
    valid = sum(map(len, re.findall(r"[^\x00-\x7f\ufffd]+", text)))
    is_cut = damages == 1 and text.endswith("\ufffd") and valid
    if is_cut or valid >= damages * (VALID_PER_DAMAGE_DECLARED if declared == "utf-8" else VALID_PER_DAMAGE):
        return decode_with_replacement(file, "utf-8")
    return decode_guessed(file)


def declared_encoding(data: bytes) -> str:
    """Python's name of the encoding that a file of HTML or XML declares; empty for none, or an unknown one."""
    match = DECLARATION.search(data[:DECLARATION_BYTES])
    try:
        name = codecs.lookup(match[1].decode("ascii", "replace")).name.replace("_", "-") if match else ""
    except LookupError:
        return ""
    # The WHATWG Encoding Standard reads Latin-1 as cp1252, and so do browsers.
    return COMMON_ENCODING if name == "iso8859-1" else name


def decode_with_replacement(file: SourceFile, encoding: str) -> str:
    """The text of a file in an encoding, with U+FFFD and a warning where it is damaged."""
    try:
        return file.data.decode(encoding)
    except UnicodeDecodeError as error:
        label = encoding.removesuffix("-sig").upper()
        file.warnings.append(f"damaged {label}: {error.reason} at byte {error.start}, replaced by U+FFFD")
        return file.data.decode(encoding, errors="replace")


def decode_guessed(file: SourceFile) -> str:
    """The text in the encoding that fits best, with a warning. Raises DocumentError where none does."""
    from charset_normalizer import from_bytes

    matches = from_bytes(file.data, cp_exclusion=EXTINCT_ENCODINGS)
    best = matches.best()
    if best is None:
        raise file.error("the character encoding is not recognised", "convert it first (for example: iconv -t utf-8)")
    is_common = any(
        match.chaos <= best.chaos
        and match.coherence >= best.coherence
        and COMMON_ENCODING in match.could_be_from_charset
        for match in matches
    )
    encoding = COMMON_ENCODING if is_common else best.encoding
    file.warnings.append(f"not UTF-8: read as {encoding}, a guess; convert it to UTF-8 if characters look wrong")
    return file.data.decode(encoding, errors="replace")
