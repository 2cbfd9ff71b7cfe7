"""Text from documents and models made harmless for a terminal: shown, never obeyed."""

from __future__ import annotations

import unicodedata

from rich.text import Text

# Right-to-left and isolate controls can make a line read differently from what it says.
DIRECTION_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Control characters, escapes and direction overrides replaced by their visible code; line ends and tabs kept."""
    return "".join(visible(character) for character in text)


def visible(character: str) -> str:
    if character in "\n\t":
        return character
    if unicodedata.category(character) in ("Cc", "Cs") or character in DIRECTION_CONTROLS:
        return f"\\u{ord(character):04x}"
    return character


def plain(text: str, style: str = "") -> Text:
    """A rich text in which markup means nothing."""
    return Text(printable(text), style=style)
