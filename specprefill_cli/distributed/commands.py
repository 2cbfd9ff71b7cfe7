"""Commands that rank 0 broadcasts and the other ranks execute with their shard of the target (`answering/rank_worker.py`).

They travel as a header of fixed size, and a payload only where that does not hold all: a step of decoding is one small
broadcast. It goes through main memory, because the receiving rank must read it before it can launch a pass, and because a
rank that waits for the user's next question must not keep its GPU busy.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

# Numbers in a header: enough for the longest proposal that adapts, and the token before it.
HEADER = 32
# A number that is a value by itself must fit int64.
LARGEST_NUMBER = 2**63


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


class Kind(IntEnum):
    """What a header holds."""

    STEP = 0
    """A `DecodeStep`: role, length, rows, number of tokens, tokens."""
    NUMBER = 1
    """An integer."""
    OBJECT = 2
    """The size in bytes of a pickled object that follows."""


def encode(value: Any) -> tuple[Tensor, Tensor | None]:
    """The header [HEADER] int64 of a value, and the payload [bytes] uint8 where there is one; on the CPU."""
    import torch

    if isinstance(value, DecodeStep) and len(value.tokens) <= HEADER - 5:
        return header(Kind.STEP, value.role, value.length, value.rows, len(value.tokens), *value.tokens), None
    if type(value) is int and -LARGEST_NUMBER <= value < LARGEST_NUMBER:
        return header(Kind.NUMBER, value), None
    payload = bytearray(pickle.dumps(value))
    return header(Kind.OBJECT, len(payload)), torch.frombuffer(payload, dtype=torch.uint8)


def decode(numbers: Tensor, receive: Callable[[Tensor], None]) -> Any:
    """The value of a header [HEADER]; `receive` fills the payload's tensor where one follows."""
    import torch

    kind, *rest = numbers.tolist()
    if kind == Kind.STEP:
        role, length, rows, count, *tokens = rest
        return DecodeStep(Role(role), length, rows, tuple(tokens[:count]))
    if kind == Kind.NUMBER:
        return rest[0]
    payload = torch.empty(rest[0], dtype=torch.uint8)
    receive(payload)
    return pickle.loads(payload.numpy().tobytes())


def header(*numbers: int) -> Tensor:
    """Numbers, padded with zeros: [HEADER] int64."""
    import torch

    return torch.tensor([*numbers, *[0] * (HEADER - len(numbers))], dtype=torch.int64)
