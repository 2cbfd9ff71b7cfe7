"""A finding about an installation or a pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`no`: not possible, and not needed; `broken`: needed, and must be repaired."""

    OK = "ok"
    LIMITED = "limited"
    NO = "no"
    BROKEN = "broken"


@dataclass(frozen=True)
class Check:
    """A finding: what was checked, its state, and one line with the cause and, where there is one, the remedy."""

    name: str
    state: State
    detail: str


def any_broken(checks: Iterable[Check]) -> bool:
    """Whether something that is needed is broken."""
    return any(check.state is State.BROKEN for check in checks)
