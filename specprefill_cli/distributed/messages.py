"""How rank 0's commands and values travel: a header of fixed size, and a payload only where that does not hold all.

A step of decoding is a header alone: one small broadcast. It goes through main memory, because the receiving rank must read
it before it can launch a pass, and because a rank that waits for the user's next question must not keep its GPU busy.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from specprefill_cli.distributed.commands import DecodeStep, Role

if TYPE_CHECKING:
    from torch import Tensor

# Numbers in a header: enough for the longest proposal that adapts, and the token before it.
HEADER = 32
# A number that is a value by itself must fit int64.
LARGEST_NUMBER = 2**63


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
