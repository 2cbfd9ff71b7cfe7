"""Plain decoding: one token a forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.models.adapter import PrefillState, run

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class DecodeSpeed:
    """Forward passes after the first token, and the seconds they took: without the time the reader of the text took."""

    passes: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        return self.passes / self.seconds if self.passes and self.seconds else None


def decode(
    model: PreTrainedModel,
    state: PrefillState,
    first: int,
    position: int,
    stop_tokens: frozenset[int],
    most: int,
    choose: Callable[[Tensor], int],
    speed: DecodeSpeed,
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
            start = time.perf_counter()
            logits = run(model, torch.tensor([token]), torch.tensor([position + number]), state)
            token = choose(logits)
            speed.seconds += time.perf_counter() - start
            speed.passes += 1
