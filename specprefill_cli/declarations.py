"""The declaration of a setting: its name, type, range and choices, and how its values are parsed."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from specprefill_cli.errors import UsageError

ENVIRONMENT_PREFIX = "SPECPREFILL_"
BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
TYPES_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of a setting.

    type: bool, int, float or str; optional: whether the value may be None, written `auto`
    panel: the option's heading in `--help`
    minimum, maximum: inclusive bounds; above: an exclusive lower bound
    words: strings allowed instead of a number; choices: all allowed values, where the list is closed
    unset: the meaning of None, in words
    rare: whether `--help` leaves the option out
    per_question: whether a row of a batch or a request to a server may set it
    """

    name: str
    default: Any
    type: type
    optional: bool
    help: str
    panel: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    words: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    unset: str = ""
    rare: bool = False
    per_question: bool = True

    @property
    def flag(self) -> str:
        return flag(self.name)

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    def parse(self, value: Any, place: str) -> Any:
        """Convert a value from a flag, a variable, a config file or JSON. Raises UsageError that begins with `place`."""
        try:
            parsed = self._convert(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            expected = in_words([TYPES_IN_WORDS[self.type], *map(repr, self.words)])
            raise UsageError(f"{place}: '{value}' is not {expected} (setting {self.name})") from error
        self.check(parsed, self.flag if place == self.flag else f"{place}: {self.name}")
        return parsed

    def _convert(self, value: Any) -> Any:
        if value in self.words or (value is None and self.optional):
            return None if self.optional else value
        if self.type is bool:
            return value if isinstance(value, bool) else BOOLEANS[value.lower()]
        fits = {int: not isinstance(value, float) or value.is_integer(), str: isinstance(value, str)}
        if isinstance(value, bool) or not fits.get(self.type, True):
            raise TypeError
        return self.type(value)

    def check(self, value: Any, label: str) -> None:
        """Raise UsageError, beginning with `label`, for a value out of range or not among the choices."""
        if value is None or value in self.words:
            return
        if self.choices:
            check_choice(value, self.choices, label)
        if not self.limits:
            return
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        if not low <= value <= high or value == math.inf or (self.above is not None and value <= self.above):
            text = f"{value:g}" if self.type is float else value
            raise UsageError(f"{label} {text}: must be {self.limits}")

    @property
    def limits(self) -> str:
        """The allowed range in words; empty if there is none."""
        if self.minimum is not None and self.maximum is not None:
            range_in_words = f"between {self.minimum} and {self.maximum}"
        elif self.minimum is not None:
            range_in_words = f"at least {self.minimum}" + (" and finite" if self.type is float else "")
        elif self.above is not None:
            range_in_words = f"above {self.above} and at most {self.maximum}"
        else:
            return ""
        return range_in_words + (f", or {' or '.join(map(repr, self.words))}" if self.words else "")


def setting(panel: str, default: Any, help: str, **details: Any) -> Any:
    """A field of `Settings`; `details` are other fields of `Setting`."""
    return field(default=default, metadata={"panel": panel, "help": help, **details})


def flag(name: str) -> str:
    """The command-line option of a setting."""
    return "--" + name.replace("_", "-")


def check_choice(value: str, choices: Iterable[str], label: str) -> None:
    """Raise UsageError, beginning with `label`, for a value that is not among the choices."""
    if value not in choices:
        raise UsageError(f"{label} {value}: unknown; use one of {', '.join(choices)}")


def in_words(alternatives: list[str]) -> str:
    """Join alternatives: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(alternatives[:-1]), alternatives[-1])))
