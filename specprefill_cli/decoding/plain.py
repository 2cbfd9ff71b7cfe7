"""Plain decoding: one token a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.models.adapter import PrefillState, run

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decode(
    model: PreTrainedModel,
    state: PrefillState,
    first: int,
    position: int,
    stop_tokens: frozenset[int],
    most: int,
    choose: Callable[[Tensor], int],
) -> Iterator[int]:
    """Yield up to `most` tokens, the given first one included, until a stop token (which is not yielded).

    position: absolute position of the first token: the full prompt's length, however few tokens the cache holds
    """
    token = first
    for number in range(most):
        if token in stop_tokens:
            return
        yield token
        if number + 1 < most:
            logits = run(model, torch.tensor([token]), torch.tensor([position + number]), state)
            token = choose(logits)
