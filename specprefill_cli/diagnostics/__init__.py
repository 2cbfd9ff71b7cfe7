"""Checks of this machine and of a pair."""

from __future__ import annotations

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
    """A finding: the name of the check, its state, and one line with cause and remedy."""

    name: str
    state: State
    detail: str
