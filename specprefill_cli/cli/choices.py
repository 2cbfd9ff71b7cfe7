"""The values that settings take by name, for help, shell completion and checks; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specprefill_cli.decoding.proposers import PROPOSERS
from specprefill_cli.errors import UsageError
from specprefill_cli.models.pairs import PAIRS
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.settings import AUTO, SETTINGS, Setting, check_choice, parse_setting

# Settings whose values are the names in a registry. `--draft` and `--target` do without a known pair.
REGISTRIES: Mapping[str, Callable[[], Sequence[str]]] = {
    "mode": lambda: (AUTO, *MODES),
    "scorer": lambda: (AUTO, *SCORERS),
    "proposer": lambda: (AUTO, *PROPOSERS),
    "pair": lambda: (AUTO, *PAIRS),
}


def choices_of(setting: Setting) -> Sequence[str]:
    """All values that a setting takes; empty where any string or number will do."""
    return REGISTRIES[setting.name]() if setting.name in REGISTRIES else setting.choices


def check_name(name: str, value: str, label: str) -> None:
    """Raises UsageError, which begins with `label`, for a mode, scorer or proposer that is not registered."""
    if name in REGISTRIES and name != "pair":
        check_choice(value, REGISTRIES[name](), label)


def split(text: str, option: str) -> list[str]:
    """The values of a comma-separated list, without repetitions. Raises UsageError where there is none."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise UsageError(f"{option}: empty; give one value, or several separated by commas")
    return parts


def setting_values(name: str, text: str, option: str) -> list[Any]:
    """Several values of a setting. Raises UsageError for a wrong value, or a name that is not registered."""
    values = [parse_setting(name, part, option) for part in split(text, option)]
    for value in values:
        check_name(name, value, option)
    return values


def complete(name: str, several: bool = False) -> Callable[[str], list[str]]:
    """Shell completion of a setting's values; `several`: of the last value in a comma-separated list."""

    def completion(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        unused = [value for value in suggestions(name) if value not in before.split(",")]
        return [before + comma + value for value in unused if value.startswith(last)]

    return completion


def suggestions(name: str) -> Sequence[str]:
    """Values to offer for a setting."""
    return choices_of(SETTINGS[name]) or SETTINGS[name].words


def setting_names(incomplete: str) -> list[str]:
    """Shell completion of a setting's name."""
    return [name for name in SETTINGS if name.startswith(incomplete)]


def concurrency_of(text: str, option: str) -> int | None:
    """A number of questions at once; None for `auto`. Raises UsageError for anything else."""
    if text == AUTO:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{option} {text}: not a whole number of at least 1, or '{AUTO}'")
    return int(text)
