"""Cleans up extracted text, and joins the lines of a PDF into paragraphs: pure functions, linear in the text."""

import re
import unicodedata
from itertools import pairwise

from specprefill_cli.documents.sentences import CELLS, CLOSERS
from specprefill_cli.errors import UsageError

SOFT_HYPHEN = "\u00ad"
SOFT_HYPHEN_AT_LINE_END = re.compile(SOFT_HYPHEN + r"[ \t]*\n[ \t]*(?=\w)")
BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){3,}")

LIGATURES = dict(zip("\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06", "ff fi fl ffi ffl st st".split(), strict=True))
# Keep the zero-width joiner and non-joiner (U+200D, U+200C): Persian, Indic scripts and emoji need them.
REMOVED = "\x00\u200b\u2060\ufeff\ufffe"
BULLETS = dict.fromkeys("\uf0b7\uf0a7\uf0d8\uf06c", "\u2022")  # of Word's symbol fonts
LINE_ENDS = "\x0b\x0c\x85\u2028\u2029"
TRANSLATION = str.maketrans(LIGATURES | BULLETS | dict.fromkeys(REMOVED, "") | dict.fromkeys(LINE_ENDS, "\n"))
NFC_CHARACTERS, SHAPE_CHARACTERS = 1000, 100
# What readers write for a character that the file does not decode.
UNDECODED = "\ufffe"
# A raised number behind these is a power; behind another number or word it is the mark of a note.
POWER_BASE = re.compile(r"(?<![\w.,])(?:10|\d|[^\W\d_]|[kcdmµn]?m|[kc]?g|s|hr?|=\s*\w{2,3})$")
RAISED_LETTERS = re.compile(r"[^\W\d]{2,}|[^\w*]+")
# A line is full from this fraction of the usual line length on: ragged-right text rarely falls below it.
FULL_LINE = 0.75
# The usual line length is this quantile over a page's lines: a single overlong line must not make all others short.
USUAL_QUANTILE = 0.9
# Narrower text is not joined; the narrow columns of journals have 40 to 50 characters.
NARROWEST_COLUMN = 35

HYPHENS = "-\u2010"
# A negative amount.
AMOUNT_END = re.compile(r"\d[.,]\d\d.$")
SENTENCE_ENDS = (".", "!", "?", ":", ";", "\u2026", "\u3002")
BLOCK_START = re.compile(  # bullets; (1) 1) a) iv); 1. and 2.1
    r"[-*+\u2022\u2023\u25aa\u25cf\u25e6\u2013\u2014]\s|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,5})\)\s|\d{1,3}(?:\.|(?:\.\d{1,3})+\.?)\s"
)
NUMBER = re.compile(r"(?<!\S)[^\s\d]*\d\S*")
# Bars between cells, and dots that lead to a number.
ROW_MARKS = (CELLS, "....", ". . . .")
# Numbers of lists: from here on, only digits are short.
LARGE = 4_000
ROMAN = (("m", 1000), ("cm", 900), ("d", 500), ("cd", 400), ("c", 100), ("xc", 90), ("l", 50), ("xl", 40), ("x", 10),
         ("ix", 9), ("v", 5), ("iv", 4), ("i", 1))  # fmt: skip


def clean_text(text: str) -> str:
    """Clean the characters of a page (`clean_characters`), and keep at most two blank lines in a row."""
    return BLANK_LINES.sub("\n\n\n", clean_characters(text))


def normalise_line_ends(text: str) -> str:
    r"""Replace `\r\n` and `\r` by `\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def replace_surrogates(text: str) -> str:
    """Join surrogate pairs into their character and replace lone surrogates, which cannot be encoded, by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_characters(text: str) -> str:
    r"""Normalise to NFC with `\n` line ends, ligatures as letters, and no NUL or soft hyphen."""
    text = normalise_line_ends(replace_surrogates(text)).translate(TRANSLATION)
    text = SOFT_HYPHEN_AT_LINE_END.sub("", text).replace(SOFT_HYPHEN, "")
    # Long words stay: a run of combining marks takes quadratic time. Line breaks and spaces never compose.
    words = re.split("([ \n])", text) if not text.isascii() else [text]
    return "".join(word if len(word) > NFC_CHARACTERS else unicodedata.normalize("NFC", word) for word in words)


def superscript(text: str, raised: str) -> str:
    """Write raised text behind a text: `10^6` for a power, `45 [1]` for the mark of a note, `4th` for letters."""
    raised = raised.strip()
    if not raised or RAISED_LETTERS.fullmatch(raised) or raised[0] in "([":
        return text + raised
    if POWER_BASE.search(text) or raised[0] in "-+\u2212":
        return f"{text}^{raised}"
    return f"{text} [{raised}]" if text.strip() and not text[-1].isspace() else f"{text}[{raised}]"


def write_number(number: int, form: str) -> str:
    """A number in letters (`a` or `A`), Roman (`i` or `I`) or otherwise Arabic digits (`01`: at least two)."""
    if form not in ("a", "A", "i", "I") or not 0 < number < LARGE:
        return f"{number:02}" if form == "01" else str(number)
    written = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1) if form in ("a", "A") else ""
    for digits, value in ROMAN if form in ("i", "I") else ():
        written, number = written + digits * (number // value), number % value
    return written.upper() if form.isupper() else written


def shape(text: str) -> str:
    """The form of a text's beginning: `0` for each number, no signs around it; values of a kind have the same."""
    return re.sub(r"\d[\d.,\s]*", "0", re.sub(r"^\W+|\W+$", "", text[:SHAPE_CHARACTERS]))


def restore_ligatures(text: str) -> str:
    """Guess what an undecoded character stands for: `ff` or `fl` before a, o and u, else `fi`."""
    text = re.sub(rf"(?<=[^\W\d_]){UNDECODED}(?=[aou]|\W|$)", "ff", text)
    text = re.sub(rf"(?<![^\W\d_]){UNDECODED}(?=[aou])", "fl", text)
    return re.sub(rf"{UNDECODED}(?=[^\W\d_])", "fi", text)


def clean_question(question: str) -> str:
    """Replace lone surrogates in a question: no tokenizer accepts them. Raises UsageError for an empty question."""
    if not question.strip():
        raise UsageError("the question is empty; give it after the documents, in quotes")
    return replace_surrogates(question)


def join_lines(text: str) -> str:
    """Join the lines of each paragraph of a page; a wrong guess costs a line break, never text."""
    lines = [line.strip() for line in text.split("\n")]
    # Chinese, Japanese and Korean characters take two columns.
    widths = [len(line) + (0 if line.isascii() else sum(map(_is_wide, line))) for line in lines]
    filled_widths = sorted(width for line, width in zip(lines, widths, strict=True) if line and CELLS not in line)
    usual_width = filled_widths[int(USUAL_QUANTILE * (len(filled_widths) - 1))] if filled_widths else 0
    is_full = [usual_width >= NARROWEST_COLUMN and width >= FULL_LINE * usual_width for width in widths]
    pieces = [lines[0]]
    for index, (line, following) in enumerate(pairwise(lines)):
        if divided_word(line, following) == "drop":
            pieces[-1] = pieces[-1][:-1]
        pieces += [separator(line, following, is_full[index], is_full[index + 1]), following]
    return "".join(pieces)


def divided_word(line: str, following: str) -> str | None:
    """Whether to `drop` (`docu-` + `ment`) or `keep` the hyphen of a word divided between lines."""
    has_hyphen = len(line) > 1 and line[-1] in HYPHENS and line[-2].isalnum() and following[:1].isalnum()
    if not has_hyphen or BLOCK_START.match(following) or AMOUNT_END.search(line):
        return None
    word = line.rsplit(None, 1)[-1][:-1]
    compound = any(hyphen in word for hyphen in HYPHENS)
    return "drop" if line[-2].isalpha() and following[0].islower() and not compound else "keep"


def separator(line: str, following: str, line_is_full: bool, following_is_full: bool) -> str:
    """Return the separator between two lines: a line break, a space, or nothing."""
    if not line or not following or BLOCK_START.match(following):
        return "\n"
    if divided_word(line, following):
        return ""
    if not line_is_full or _is_table_row(line) or _is_table_row(following):
        return "\n"
    ends, next_ends = (text.rstrip(CLOSERS).endswith(SENTENCE_ENDS) for text in (line, following))
    # A heading follows: short, capitalised, without a full stop.
    if ends and not (next_ends or following_is_full or following[0].islower()):
        return "\n"
    return "" if _is_wide(line[-1]) and _is_wide(following[0]) else " "


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def _is_table_row(line: str) -> bool:
    words, numbers = len(line.split()), len(NUMBER.findall(line))
    return (words > 1 and 2 * numbers >= words) or any(mark in line for mark in ROW_MARKS)
