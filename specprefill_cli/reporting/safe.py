"""Makes text from documents and models harmless for a terminal or a page: it is shown, never obeyed."""

from __future__ import annotations

import unicodedata

from rich.text import Text

# Controls, surrogates, line separators and format characters. The format characters include direction overrides, which
# reorder a line, and tags, which hide text.
OBEYED = frozenset({"Cc", "Cs", "Zl", "Zp", "Cf"})
# Joiners of Persian, Indic scripts and emoji, and format characters that are visible (Arabic, Kaithi).
HARMLESS = frozenset(
    "\n\t\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)


def printable(text: str) -> str:
    """Replace control characters, escapes and direction overrides by their visible code; keep line ends and tabs."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in HARMLESS or unicodedata.category(character) not in OBEYED:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def plain(text: str, style: str = "") -> Text:
    """Build a rich text; markup in `text` has no effect."""
    return Text(printable(text), style=style)
