"""A model reading an answer token by token after its prompt, and rolling back rejected tokens; on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.distributed import ALONE, Ranks, Shard
from specprefill_cli.models.running.adapter import run_pass
from specprefill_cli.models.running.cache import KvCacheState, rollback
from specprefill_cli.models.running.passes import ForwardGenerator, ForwardInput
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PhaseClock, PrefillRequest


@dataclass(eq=False)
class SequenceRunner:
    """A transformers model with a cache of the prompt and of the answer's first `length` tokens.

    position: absolute position of the answer's first token: the full prompt's length, however few slots the cache holds
    ranks: the processes that read together, led by this process as rank 0; each holds its shard of the same cache
    """

    model: PreTrainedModel
    state: KvCacheState
    position: int
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        self.prompt_slots = self.state.length

    @property
    def length(self) -> int:
        return self.state.length - self.prompt_slots

    def read(self, tokens: Sequence[int], rows: int = 1) -> ForwardGenerator[Tensor]:
        """Ask for the pass over the answer's next tokens; return float32 logits [rows, V] after the last `rows`."""
        start = self.position + self.length
        work = partial(read_shard, self.length, tuple(tokens), rows)
        step = ForwardInput(
            model=self.model,
            tokens=torch.tensor(tokens),
            positions=torch.arange(start, start + len(tokens)),
            state=self.state,
            rows=rows,
            announced=partial(self.ranks.run_on_all_ranks, work),
        )
        return (yield step)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the answer, or all of a shorter one; other ranks do so at the next read."""
        if length < self.length:
            rollback(self.state, self.prompt_slots + length)


def read_shard(length: int, tokens: tuple[int, ...], rows: int, shard: Shard) -> None:
    """On another rank: roll back to the answer's first `length` tokens, and read the tokens that follow."""
    shard.runner.rollback(length)
    run_pass(next(shard.runner.read(tokens, rows)))


def prefill_shard(mode: str, request: PrefillRequest, shard: Shard) -> None:
    """On another rank: prefill its shard of the target for a request made by `portable`."""
    # The last answer's cache must not stay in memory beside this answer's.
    shard.runner = None
    cache = request.target_prefixes
    kept = cache and shard.prefix_caches.setdefault(cache.name, cache)
    request = replace(request, pair=shard.session.pair, clock=PhaseClock(), target_prefixes=kept)
    prefilled = MODES[mode].prefill(request)
    shard.runner = SequenceRunner(request.target.model, prefilled.state, prefilled.answer_position)
