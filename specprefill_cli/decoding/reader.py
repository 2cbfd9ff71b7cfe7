"""A model reading an answer token by token after its prompt, and rolling back rejected tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.distributed.commands import DecodeStep, Role
from specprefill_cli.distributed.ranks import ALONE, Ranks
from specprefill_cli.models.adapter import run_steps
from specprefill_cli.models.cache import PrefillState, rollback
from specprefill_cli.models.passes import Pass, Steps

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

    def read(self, tokens: Sequence[int], rows: int = 1) -> Steps[Tensor]:
        """Ask for the pass over the answer's next tokens.

        Returns float32 logits [rows, vocabulary] after each of the last `rows`.
        """
        start = self.position + self.length
        command = DecodeStep(self.role, self.length, rows, tuple(tokens))
        return (
            yield Pass(
                model=self.model,
                tokens=torch.tensor(tokens),
                positions=torch.arange(start, start + len(tokens)),
                state=self.state,
                rows=rows,
                announced=partial(self.ranks.together, command),
            )
        )

    def read_now(self, tokens: Sequence[int], rows: int = 1) -> Tensor:
        """Read the answer's next tokens at once; returns what `read` does."""
        return run_steps(self.read(tokens, rows))

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the answer, or all where there are no more.

        Other ranks do so before the next step, which says how many they keep.
        """
        if length < self.length:
            rollback(self.state, self.prompt_slots + length)
