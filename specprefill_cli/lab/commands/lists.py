"""Options of the lab whose values are comma-separated lists."""

from __future__ import annotations

from specprefill_cli.cli.options import ListOption, split
from specprefill_cli.errors import UsageError
from specprefill_cli.settings import AUTO

KEEP_LIST = ListOption("keep", "--keep", "Keep ratios, comma-separated; auto is allowed")
SCORER_LIST = ListOption("scorer", "--scorer", "Scorers, comma-separated")
SPECULATE_LIST = ListOption(
    "speculate", "--speculate", "What is compared with plain decoding: auto or numbers, comma-separated", AUTO
)


def whole_numbers(text: str, option: str) -> list[int]:
    """Raises UsageError for a part that is not a whole number."""
    try:
        return [int(part) for part in split(text, option)]
    except ValueError as error:
        raise UsageError(f"{option} {text}: not a whole number, or several separated by commas") from error
