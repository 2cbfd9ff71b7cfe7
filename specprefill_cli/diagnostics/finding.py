"""One finding about an installation or a pair: its name, how it stands, and the detail in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`no`: it is not possible, and need not be; `broken`: it is needed and must be mended."""

    OK = "ok"
    LIMITED = "limited"
    NO = "no"
    BROKEN = "broken"


@dataclass(frozen=True)
class Check:
    """A finding; `detail` is one line that names the cause and, where something is to be done, the mend."""

    name: str
    state: State
    detail: str


def any_broken(checks: Iterable[Check]) -> bool:
    return any(check.state is State.BROKEN for check in checks)
