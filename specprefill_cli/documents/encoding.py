"""Turns bytes into text: detects a file's encoding."""

import codecs
import re
from contextlib import suppress

from specprefill_cli.documents.reader import SourceFile

# The UTF-32 marks come first: the little-endian mark starts with the mark of UTF-16.
BOM_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# An XML or HTML file declares its encoding near its beginning.
DECLARATION_BYTES = 4096
DECLARATION = re.compile(
    rb"""<(?:\?xml|meta)[^>]{0,400}?[\s;"'](?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
# Python codecs that are not file encodings (some take quadratic time), and a missing declaration: never decode with these.
NOT_FILE_ENCODINGS = frozenset({"", "idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7"})
# A file counts as damaged UTF-8 if it holds at least this many valid multi-byte characters per damaged place: text in
# another encoding holds almost none. If the file declares UTF-8, fewer are enough.
VALID_PER_DAMAGE, VALID_PER_DAMAGE_DECLARED = 4, 1
# The web's most common single-byte encoding: it wins if the guess cannot tell it from similar encodings.
COMMON_ENCODING = "cp1252"
# Encodings of Classic Mac OS, DOS and mainframes are rare today, but charset_normalizer prefers them for short texts
# (mac_cyrillic for Cyrillic in cp1251, cp775 for German in cp1252).
EXTINCT_ENCODINGS = (
    "mac_cyrillic mac_greek mac_iceland mac_latin2 mac_roman mac_turkish cp437 cp775 cp850 cp852 cp857 cp858 cp860 cp861 "
    "cp863 cp865 cp037 cp273 cp500 cp1026 cp1140 hp_roman8"
).split()


def decode_text(file: SourceFile, is_markup: bool = False) -> str:
    """Decode a text file and warn about doubtful characters. Raises DocumentError if no encoding fits.

    Tries in order: byte order mark, UTF-8, the encoding that HTML or XML declares, UTF-8 with a few damaged places, a
    guess. The last two add a warning.
    """
    for mark, encoding in BOM_ENCODINGS.items():
        if file.data.startswith(mark):
            return decode_with_replacement(file, encoding)
    with suppress(UnicodeDecodeError):
        return file.data.decode("utf-8")
    match = DECLARATION.search(file.data[:DECLARATION_BYTES]) if is_markup else None
    declared = ""
    # An unknown codec, one that does not give text, or bytes in another encoding.
    with suppress(LookupError, ValueError):
        declared = codecs.lookup(match[1].decode("ascii", "replace")).name.replace("_", "-") if match else ""
        # The WHATWG Encoding Standard, and so every browser, reads Latin-1 as cp1252.
        if declared in ("iso8859-1", COMMON_ENCODING):
            return file.data.decode(COMMON_ENCODING, errors="replace")
        if declared not in NOT_FILE_ENCODINGS:
            return file.data.decode(declared)
    text = file.data.decode("utf-8", errors="replace")
    damaged_places = text.count("\ufffd") - file.data.count("\ufffd".encode())
    valid_characters = sum(map(len, re.findall(r"[^\x00-\x7f\ufffd]+", text)))
    is_cut = damaged_places == 1 and text.endswith("\ufffd") and valid_characters
    needed = VALID_PER_DAMAGE_DECLARED if declared == "utf-8" else VALID_PER_DAMAGE
    if is_cut or valid_characters >= damaged_places * needed:
        return decode_with_replacement(file, "utf-8")
    return decode_guessed(file)


def decode_with_replacement(file: SourceFile, encoding: str) -> str:
    """Decode a file; replace damaged places by U+FFFD and add a warning."""
    try:
        return file.data.decode(encoding)
    except UnicodeDecodeError as error:
        label = encoding.removesuffix("-sig").upper()
        file.warnings.append(f"damaged {label}: {error.reason} at byte {error.start}, replaced by U+FFFD")
        return file.data.decode(encoding, errors="replace")


def decode_guessed(file: SourceFile) -> str:
    """Decode a file with the best-fitting encoding and add a warning. Raises DocumentError if no encoding fits."""
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
