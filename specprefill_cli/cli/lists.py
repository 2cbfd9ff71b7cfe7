"""Options whose values are comma-separated lists."""

from __future__ import annotations

from typing import Any

from specprefill_cli.cli.choices import check_name
from specprefill_cli.errors import UsageError
from specprefill_cli.settings import parse_setting


def split(text: str, option: str) -> list[str]:
    """The values of a comma-separated list, without repetitions. Raises UsageError where there is none."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise UsageError(f"{option}: empty; give one value, or several separated by commas")
    return parts


def whole_numbers(text: str, option: str) -> list[int]:
    """Raises UsageError for a part that is not a whole number."""
    try:
        return [int(part) for part in split(text, option)]
    except ValueError as error:
        raise UsageError(f"{option} {text}: not a whole number, or several separated by commas") from error


def setting_values(name: str, text: str, option: str) -> list[Any]:
    """Several values of a setting. Raises UsageError for a wrong value, or a name that is not registered."""
    values = [parse_setting(name, part, option) for part in split(text, option)]
    for value in values:
        check_name(name, value)
    return values
