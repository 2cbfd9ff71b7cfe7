"""Bytes -> text: which encoding a file is in."""

import codecs
import re

from specprefill_cli.documents.reader import SourceFile

# The UTF-32 marks come first: the little-endian one starts with the mark of UTF-16.
_BOM_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

# The declaration of an XML or HTML file stands near its beginning.
_DECLARATION_BYTES = 4096
_DECLARATION = re.compile(
    rb"""<(?:\?xml|meta)[^>]{0,400}?[\s;"'](?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)

# Python codecs that are no file encodings (some take quadratic time): never believed when a page declares them.
_NOT_FILE_ENCODINGS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7"})

# Damaged UTF-8 is likelier than another encoding if it holds at least this many valid multi-byte characters for each
# damaged place; text in another encoding holds next to none. Where the file declares UTF-8, fewer are enough.
_VALID_PER_DAMAGE, _VALID_PER_DAMAGE_DECLARED = 4, 1

# The web's most common single-byte encoding: it wins when the guess cannot tell it from its neighbours.
_COMMON_ENCODING = "cp1252"

# Encodings of Classic Mac OS, DOS and mainframes are hardly written today, but the guess prefers them for short texts
# (mac_cyrillic for Cyrillic in cp1251, cp775 for German in cp1252).
_EXTINCT_ENCODINGS = (
    "mac_cyrillic mac_greek mac_iceland mac_latin2 mac_roman mac_turkish cp437 cp775 cp850 cp852 cp857 cp858 cp860 cp861 "
    "cp863 cp865 cp037 cp273 cp500 cp1026 cp1140 hp_roman8"
).split()


def declared_encoding(markup: bytes) -> str | None:
    """Return the encoding that an XML declaration or an HTML `meta` element names, or None."""
    match = _DECLARATION.search(markup[:_DECLARATION_BYTES])
    return match[1].decode("ascii", "replace") if match else None


def decode(file: SourceFile, declared: str | None = None) -> str:
    """Decode a file, and warn about doubtful characters.

    Tried in this order: byte order mark, UTF-8, the encoding that the file itself declares, UTF-8 with a few damaged
    places, a guess (the last two always with a warning). Raises DocumentError when nothing fits.
    """
    data = file.data
    for mark, encoding in _BOM_ENCODINGS:
        if data.startswith(mark):
            return _decode_with_replacement(file, encoding)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    if declared is not None and (text := _decode_declared(data, declared)) is not None:
        return text
    if _is_damaged_utf8(data, declared):
        return _decode_with_replacement(file, "utf-8")
    guess = _guess_encoding(data)
    if guess is None:
        raise file.error("the character encoding is not recognised", "convert it first (for example: iconv -t utf-8)")
    file.warnings.append(f"not UTF-8: read as {guess}, a guess; convert it to UTF-8 if characters look wrong")
    return data.decode(guess, errors="replace")


def _is_damaged_utf8(data: bytes, declared: str | None) -> bool:
    """Whether bytes that are not UTF-8 were meant to be: cut at the end, or with few damaged places."""
    text = data.decode("utf-8", errors="replace")
    damages = text.count("\ufffd") - data.count("\ufffd".encode())
    valid = sum(map(len, re.findall(r"[^\x00-\x7f\ufffd]+", text)))
    if damages == 1 and text.endswith("\ufffd") and valid:
        return True
    declares_utf8 = declared is not None and _codec_name(declared) == "utf-8"
    return valid >= damages * (_VALID_PER_DAMAGE_DECLARED if declares_utf8 else _VALID_PER_DAMAGE)


def _codec_name(encoding: str) -> str | None:
    try:
        return codecs.lookup(encoding).name.replace("_", "-")
    except (LookupError, ValueError):  # an unknown name; a name with NUL
        return None


def _decode_with_replacement(file: SourceFile, encoding: str) -> str:
    try:
        return file.data.decode(encoding)
    except UnicodeDecodeError as error:
        label = encoding.removesuffix("-sig").upper()
        file.warnings.append(f"damaged {label}: {error.reason} at byte {error.start}, replaced by U+FFFD")
        return file.data.decode(encoding, errors="replace")


def _decode_declared(data: bytes, declared: str) -> str | None:
    encoding = _codec_name(declared)
    if encoding is None or encoding in _NOT_FILE_ENCODINGS:
        return None
    if encoding == "iso8859-1":
        # The WHATWG Encoding Standard reads Latin-1 as cp1252, and so do browsers.
        return data.decode(_COMMON_ENCODING, errors="replace")
    try:
        return data.decode(encoding)
    except (LookupError, ValueError):  # a codec that does not give text; bytes that are not in that encoding
        return None


def _guess_encoding(data: bytes) -> str | None:
    from charset_normalizer import from_bytes

    matches = from_bytes(data, cp_exclusion=_EXTINCT_ENCODINGS)
    best = matches.best()
    if best is None:
        return None
    for match in matches:
        as_good = match.chaos <= best.chaos and match.coherence >= best.coherence
        if as_good and _COMMON_ENCODING in match.could_be_from_charset:
            return _COMMON_ENCODING
    return best.encoding
