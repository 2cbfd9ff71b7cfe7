"""What works on this machine and with this pair."""

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
    """A finding: what was checked, its state, and one line with the cause and, where there is one, the remedy."""

    name: str
    state: State
    detail: str
