"""Options whose values are comma-separated lists of numbers."""

from __future__ import annotations

from specprefill_cli.cli.choices import split
from specprefill_cli.errors import UsageError


def whole_numbers(text: str, option: str) -> list[int]:
    """Raises UsageError for a part that is not a whole number."""
    try:
        return [int(part) for part in split(text, option)]
    except ValueError as error:
        raise UsageError(f"{option} {text}: not a whole number, or several separated by commas") from error
