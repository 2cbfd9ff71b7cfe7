"""A model reading an answer token by token behind its prompt, and forgetting what was not accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from specprefill_cli.distributed.commands import Forget, Read
from specprefill_cli.distributed.ranks import ALONE, Ranks
from specprefill_cli.models.adapter import run
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.cache import rollback as rollback_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Reader(Protocol):
    """What decoding needs of a model: its cache holds the prompt and the first `length` tokens of the answer."""

    @property
    def length(self) -> int: ...

    def read(self, tokens: Sequence[int], rows: int = 1) -> Tensor:
        """Read the answer's next tokens; logits [rows, V] in float32 after each of the last `rows` of them."""
        ...

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the answer; more than were read is all of them."""
        ...


class ModelReader:
    """A transformers model with a prefilled cache.

    position: absolute position of the answer's first token: the full prompt's length, however few slots the cache holds
    ranks: whom this one, as rank 0, leads in reading; the others hold the same answer in caches of their own
    """

    def __init__(self, model: PreTrainedModel, state: PrefillState, position: int, ranks: Ranks = ALONE) -> None:
        self.model = model
        self.state = state
        self.position = position
        self.ranks = ranks
        self.prompt_slots = state.length

    @property
    def length(self) -> int:
        return self.state.length - self.prompt_slots

    def read(self, tokens: Sequence[int], rows: int = 1) -> Tensor:
        start = self.position + self.length
        positions = torch.arange(start, start + len(tokens))
        with self.ranks.together(Read(tuple(tokens), rows)):
            return run(self.model, torch.tensor(tokens), positions, self.state, rows=rows)

    def rollback(self, length: int) -> None:
        if length >= self.length:
            return
        with self.ranks.together(Forget(length)):
            rollback_state(self.state, self.prompt_slots + length)
