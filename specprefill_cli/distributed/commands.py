"""Commands that rank 0 broadcasts and the other ranks execute with their shard of the target (`answering/rank_worker.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from specprefill_cli.settings import Settings


class Command:
    """What all ranks do together."""


@dataclass(frozen=True)
class OpenPair(Command):
    """Load the pair, as rank 0 does."""

    settings: Settings
    draft: bool
    calibrated: bool


@dataclass(frozen=True)
class OpenOther(Command):
    """Make another pair than the settings name, as rank 0 does.

    opener: a function of this rank's `Ranks` that returns the session; every rank must be able to import it
    """

    opener: Callable[[Any], Any]


@dataclass(frozen=True)
class SharedCache:
    """A prefix cache of which each rank keeps its shard: rank 0's name for it, and its limit.

    The limit must be the same on every rank, so that all forget the same documents.
    """

    name: str
    capacity_bytes: int


@dataclass(frozen=True, kw_only=True)
class Prefill(Command):
    """Prefill a prompt in a mode.

    request: the mode's request without what belongs to one process, such as models and caches
    draft_cache, target_cache: what earlier questions left; None: nothing, and nothing is kept
    """

    mode: str
    request: Any
    draft_cache: SharedCache | None
    target_cache: SharedCache | None


@dataclass(frozen=True)
class Score(Command):
    """Score a prompt with the draft; request: as in `Prefill`, and without caches."""

    request: Any


class Role(IntEnum):
    """Which model of the pair."""

    DRAFT = 0
    TARGET = 1


@dataclass(frozen=True)
class ReadPrompt(Command):
    """Run the draft over the prompt, so that it can propose tokens: token ids [N] at positions [N], `chunk` at a time.

    position: of the answer's first token
    """

    tokens: Any
    positions: Any
    chunk: int
    position: int


@dataclass(frozen=True)
class DecodeStep(Command):
    """Run a model over the answer's next tokens, with logits for the last `rows` of them.

    length: tokens of the answer that stay in its cache; what stands behind them was rejected
    """

    role: Role
    length: int
    rows: int
    tokens: tuple[int, ...]
