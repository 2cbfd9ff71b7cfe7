"""Commands that rank 0 broadcasts and the other ranks execute with their shard of the target (`answering/rank_worker.py`)."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Prefill(Command):
    """Prefill a prompt in a mode.

    request: the mode's request without what belongs to one process, such as models and caches
    prefix_cache: rank 0's name of the target's prefix cache, of which each rank keeps its shard
    prefix_cache_bytes: its limit, which must be the same on every rank, so that all forget the same documents
    """

    mode: str
    request: Any
    prefix_cache: str | None
    prefix_cache_bytes: int = 0


@dataclass(frozen=True)
class DecodeStep(Command):
    """Run the target over the answer's next tokens, with logits for the last `rows` of them."""

    tokens: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Rollback(Command):
    """Keep the first `length` tokens of the answer in the cache."""

    length: int
