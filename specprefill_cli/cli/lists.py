"""Options whose values are lists: parts with commas between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.errors import UsageError

if TYPE_CHECKING:
    from specprefill_cli.settings import Settings


def split(text: str, option: str) -> list[str]:
    """The parts of an option's value, each once. Raises UsageError where there is none."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise UsageError(f"{option}: empty; give one value, or several separated by commas")
    return parts


def whole_numbers(text: str, option: str) -> list[int]:
    """Raises UsageError for a part that is no whole number."""
    return [whole_number(part, option) for part in split(text, option)]


def whole_number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: not a whole number") from error


def ratios(text: str | None, settings: Settings) -> list[float | None]:
    """The keep ratios of `--keep` (None for `auto`); the setting's where it was not given.

    Raises UsageError for a part that is no number.
    """
    return [settings.keep] if text is None else [ratio(part) for part in split(text, "--keep")]


def ratio(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--keep {text}: not a number or 'auto'") from error
