"""A model reading an answer token by token after its prompt, and rolling back rejected tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.distributed.commands import DecodeStep, Role
from specprefill_cli.distributed.ranks import ALONE, Ranks
from specprefill_cli.models.adapter import run
from specprefill_cli.models.cache import PrefillState, rollback

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelReader:
    """A transformers model whose cache holds the prompt and the first `length` tokens of the answer.

    position: absolute position of the answer's first token: the full prompt's length, however few slots the cache holds
    ranks: the processes that this one, as rank 0, leads in reading; each holds its shard of the same cache
    role: which of their models this is
    """

    def __init__(
        self,
        model: PreTrainedModel,
        state: PrefillState,
        position: int,
        ranks: Ranks = ALONE,
        role: Role = Role.TARGET,
    ) -> None:
        self.model = model
        self.state = state
        self.position = position
        self.ranks = ranks
        self.role = role
        self.prompt_slots = state.length

    @property
    def length(self) -> int:
        return self.state.length - self.prompt_slots

    def read(self, tokens: Sequence[int], rows: int = 1) -> Tensor:
        """Read the answer's next tokens; return float32 logits [rows, vocabulary] after each of the last `rows`."""
        start = self.position + self.length
        positions = torch.arange(start, start + len(tokens))
        with self.ranks.together(DecodeStep(self.role, self.length, rows, tuple(tokens))):
            return run(self.model, torch.tensor(tokens), positions, self.state, rows=rows)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the answer, or all where there are no more.

        Other ranks do so before the next step, which says how many they keep.
        """
        if length < self.length:
            rollback(self.state, self.prompt_slots + length)
