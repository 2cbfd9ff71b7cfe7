"""Cleans up extracted text: pure functions, linear in the text, idempotent."""

import re
import unicodedata
from collections.abc import Iterable

from specprefill_cli.errors import UsageError

SURROGATE = re.compile("[\ud800-\udfff]")
SOFT_HYPHEN = "\u00ad"
SOFT_HYPHEN_AT_LINE_END = re.compile(SOFT_HYPHEN + r"[ \t]*\n[ \t]*(?=\w)")
BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){3,}")

LIGATURES = dict(zip("\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06", "ff fi fl ffi ffl st st".split(), strict=True))
# Keep the zero-width joiner and non-joiner (U+200D, U+200C): Persian, Indic scripts and emoji need them.
REMOVED = "\x00\u200b\u2060\ufeff\ufffe"
BULLETS = dict.fromkeys("\uf0b7\uf0a7\uf0d8\uf06c", "\u2022")  # of Word's symbol fonts
LINE_ENDS = "\x0b\x0c\x85\u2028\u2029"
TRANSLATION = str.maketrans(LIGATURES | BULLETS | dict.fromkeys(REMOVED, "") | dict.fromkeys(LINE_ENDS, "\n"))
NFC_CHARACTERS = 1000
# What readers write for a character that the file does not decode.
UNDECODED = "\ufffe"
# A raised number behind these is a power; behind another number or word it is the mark of a note.
POWER_BASE = re.compile(r"(?<![\w.,])(?:10|\d|[^\W\d_]|[kcdmµn]?m|[kc]?g|s|hr?|=\s*\w{2,3})$")
RAISED_LETTERS = re.compile(r"[^\W\d]{2,}|[^\w*]+")


def clean_text(text: str) -> str:
    """Clean the characters of a page (`clean_characters`), and keep at most two blank lines in a row."""
    return BLANK_LINES.sub("\n\n\n", clean_characters(text))


def normalise_line_ends(text: str) -> str:
    r"""Replace `\r\n` and `\r` by `\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def replace_surrogates(text: str) -> str:
    """Join surrogate pairs into their character and replace lone surrogates by U+FFFD.

    Strings with surrogates cannot be encoded: they would fail later, in the tokenizer or at the terminal.
    """
    if not SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_characters(text: str) -> str:
    r"""Normalise to NFC with `\n` line ends, ligatures as letters, and no NUL, soft hyphen or zero-width space.

    Joins a word divided by a soft hyphen at a line end. Vertical tabs, form feeds and Unicode line separators become
    line ends.
    """
    text = normalise_line_ends(replace_surrogates(text)).translate(TRANSLATION)
    text = SOFT_HYPHEN_AT_LINE_END.sub("", text).replace(SOFT_HYPHEN, "")
    return normalise_nfc(text)


def normalise_nfc(text: str) -> str:
    """Compose Unicode characters (NFC); words of more than 1000 characters stay as they are.

    unicodedata sorts a run of combining marks in quadratic time (minutes for 400,000 of them). Line breaks and spaces
    never compose, so the text can be normalised word by word.
    """
    if text.isascii():
        return text
    words = re.split("([ \n])", text)
    return "".join(word if len(word) > NFC_CHARACTERS else unicodedata.normalize("NFC", word) for word in words)


def row_text(cells: Iterable[str]) -> str:
    """Write a table row as `a | b`; empty cells before a filled cell keep their bars, so that columns stay aligned."""
    cell_texts = [" ".join(cell.split()) for cell in cells]
    while cell_texts and not cell_texts[-1]:
        cell_texts.pop()
    return " ".join(" | ".join(cell_texts).split())


def superscript(text: str, raised: str) -> str:
    """Write raised text behind a text: `10^6` for a power, `45 [1]` for the mark of a note, `4th` for letters."""
    raised = raised.strip()
    if not raised or RAISED_LETTERS.fullmatch(raised) or raised[0] in "([":
        return text + raised
    if POWER_BASE.search(text) or raised[0] in "-+\u2212":
        return f"{text}^{raised}"
    return f"{text} [{raised}]" if text.strip() and not text[-1].isspace() else f"{text}[{raised}]"


def restore_ligatures(text: str) -> str:
    """Guess the ligature that an undecoded character in a word stands for; the most frequent one, `fi`, unless it ends in f.

    A full guess needs a dictionary: before a, o and u, `ff` stands inside a word and `fl` at its beginning.
    """
    if UNDECODED not in text:
        return text
    text = re.sub(rf"(?<=[^\W\d_]){UNDECODED}(?=[aou]|\W|$)", "ff", text)
    text = re.sub(rf"(?<![^\W\d_]){UNDECODED}(?=[aou])", "fl", text)
    return re.sub(rf"{UNDECODED}(?=[^\W\d_])", "fi", text)


def clean_question(question: str) -> str:
    """Replace lone surrogates in a question: no tokenizer accepts them. Raises UsageError for an empty question."""
    if not question.strip():
        raise UsageError("the question is empty; give it after the documents, in quotes")
    return replace_surrogates(question)
