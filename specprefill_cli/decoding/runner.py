"""A model reading an answer token by token after its prompt, and rolling back rejected tokens; on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.distributed import ALONE, Ranks, Shard
from specprefill_cli.models.running.adapter import prefill, run_steps
from specprefill_cli.models.running.cache import KvCacheState, new_state, rollback
from specprefill_cli.models.running.passes import ForwardGenerator, ForwardInput
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PhaseClock

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specprefill_cli.models.loaded import LoadedModel, LoadedPair
    from specprefill_cli.prefill.request import PrefillRequest

# Which model of the pair a runner is.
DRAFT, TARGET = "draft", "target"


@dataclass(eq=False)
class SequenceRunner:
    """A transformers model with a cache of the prompt and of the answer's first `length` tokens.

    position: absolute position of the answer's first token: the full prompt's length, however few slots the cache holds
    ranks: the processes that read together, led by this process as rank 0; each holds its shard of the same cache
    role: which of their models this is, DRAFT or TARGET
    """

    model: PreTrainedModel
    state: KvCacheState
    position: int
    ranks: Ranks = ALONE
    role: str = TARGET

    def __post_init__(self) -> None:
        self.prompt_slots = self.state.length

    @property
    def length(self) -> int:
        return self.state.length - self.prompt_slots

    def read(self, tokens: Sequence[int], rows: int = 1) -> ForwardGenerator[Tensor]:
        """Ask for the pass over the answer's next tokens; return float32 logits [rows, V] after the last `rows`."""
        start = self.position + self.length
        work = partial(read_shard, self.role, self.length, tuple(tokens), rows)
        return (
            yield ForwardInput(
                model=self.model,
                tokens=torch.tensor(tokens),
                positions=torch.arange(start, start + len(tokens)),
                state=self.state,
                rows=rows,
                announced=partial(self.ranks.run_on_all_ranks, work),
            )
        )

    def read_now(self, tokens: Sequence[int], rows: int = 1) -> Tensor:
        return run_steps(self.read(tokens, rows))

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the answer, or all of a shorter one; other ranks do so at the next read."""
        if length < self.length:
            rollback(self.state, self.prompt_slots + length)


def draft_runner(pair: LoadedPair, position: int) -> SequenceRunner:
    """The draft with an empty cache; position: of the next token."""
    return SequenceRunner(pair.loaded_draft.model, new_state(), position, pair.draft_ranks, DRAFT)


def prefilled_draft(
    draft: LoadedModel, ranks: Ranks, tokens: Tensor, positions: Tensor, pass_size: int, position: int
) -> SequenceRunner:
    """Prefill the draft with token ids [N] at positions [N]; position: of the answer's first token."""
    with ranks.run_on_all_ranks(partial(read_prompt_shard, tokens, positions, pass_size, position)):
        _, state = prefill(draft.model, tokens, positions, pass_size)
    return SequenceRunner(draft.model, state, position, ranks, DRAFT)


def read_shard(role: str, length: int, tokens: tuple[int, ...], rows: int, shard: Shard) -> None:
    """On another rank: roll back to the answer's first `length` tokens, and read the tokens that follow."""
    runner = shard.runners[role]
    runner.rollback(length)
    runner.read_now(tokens, rows)


def read_prompt_shard(tokens: Tensor, positions: Tensor, pass_size: int, position: int, shard: Shard) -> None:
    """On another rank: `prefilled_draft`."""
    # The last answer's cache must not stay in memory beside this answer's.
    shard.runners.pop(DRAFT, None)
    shard.runners[DRAFT] = prefilled_draft(
        shard.session.pair.loaded_draft, ALONE, tokens, positions, pass_size, position
    )


def prefill_shard(mode: str, request: PrefillRequest, shard: Shard) -> None:
    """On another rank: prefill its shard of the target, and of a shared draft, for a request made by `portable`."""
    # The last answer's caches must not stay in memory beside this answer's.
    shard.runners.clear()
    caches = (request.draft_prefixes, request.target_prefixes)
    draft, target = (cache and shard.prefix_caches.setdefault(cache.name, cache) for cache in caches)
    pair = shard.session.pair
    request = replace(request, pair=pair, clock=PhaseClock(), draft_prefixes=draft, target_prefixes=target)
    prefilled = MODES[mode].prefill(request)
    shard.runners[TARGET] = SequenceRunner(request.target.model, prefilled.state, prefilled.answer_position)
    if pair.draft_ranks.size > 1:
        shard.runners[DRAFT] = draft_runner(pair, prefilled.answer_position)
