"""Which proposers an answer gets, at which pace, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specprefill_cli.decoding.adaptive import (
    AdaptivePace,
    AssumedCosts,
    FixedPace,
    SpeculationMemory,
)
from specprefill_cli.decoding.proposers.base import Proposer
from specprefill_cli.decoding.proposers.draft import DraftProposer
from specprefill_cli.decoding.proposers.lookup import LookupProposer
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.speculative import Speculator
from specprefill_cli.errors import UsageError
from specprefill_cli.models.adapter import prefill
from specprefill_cli.prefill.auto_mode import cost_of
from specprefill_cli.prefill.modes.base import Prefilled
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.settings import AUTO, OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedPair


def check_proposer(settings: Settings, pair: LoadedPair) -> None:
    """Raises UsageError where the settings ask the draft for proposals that the target could not read."""
    if settings.speculate == OFF or settings.proposer != DraftProposer.name:
        return
    if pair.draft is None:
        raise UsageError("--proposer draft: no draft is loaded; use --proposer lookup, or --speculate off")
    if not pair.same_tokenizer:
        raise UsageError(
            f"--proposer draft: {pair.draft.name} and {pair.target.name} have different tokenizers; use --proposer "
            "lookup, --speculate off, or a --draft with the target's tokenizer"
        )


def draft_may_propose(settings: Settings, pair: LoadedPair) -> bool:
    """Whether the draft's cache of the prompt will be wanted after prefill."""
    return (
        settings.speculate != OFF
        and settings.proposer in (AUTO, DraftProposer.name)
        and settings.max_new_tokens > 1
        and pair.same_tokenizer
    )


def adapts(settings: Settings) -> bool:
    """Whether what proposing costs on this machine decides how much is proposed: not where a seed must repeat an answer."""
    return settings.speculate == AUTO and settings.temperature == 0 and settings.max_new_tokens > 1


def proposer_cautions(settings: Settings, request: ScoringRequest) -> tuple[str, ...]:
    """A warning where the draft was asked by name to propose, and its context has no room behind the prompt."""
    draft, length = request.pair.draft, request.prompt.length
    if settings.speculate == OFF or settings.proposer != DraftProposer.name or length < draft.context:
        return ()
    return (
        f"--proposer draft: the prompt's {length:,} tokens fill {draft.name}'s context of {draft.context:,}; nothing is "
        "proposed: use --proposer lookup",
    )


def choose_speculator(
    request: ScoringRequest,
    prefilled: Prefilled,
    settings: Settings,
    sampler: Sampler,
    stop_tokens: frozenset[int],
    memory: SpeculationMemory,
) -> Speculator | None:
    """The proposers for an answer behind a prefilled prompt: lookup first, which costs next to nothing, then the draft.

    memory: the session's; a sampled answer does without, because its tokens depend on the pace (its distribution does
    not), and a seed must draw the same tokens again
    """
    if settings.speculate == OFF:
        return None
    proposers: list[Proposer] = []
    if settings.proposer in (AUTO, LookupProposer.name):
        proposers.append(LookupProposer(request.prompt.tokens[prefilled.state.positions]))
    if draft_may_propose(settings, request.pair):
        proposers.append(draft_proposer(request, prefilled, sampler, stop_tokens))
    if settings.speculate == AUTO:
        pace = AdaptivePace(memory if sampler.greedy else SpeculationMemory(AssumedCosts()))
    else:
        pace = FixedPace(int(settings.speculate))
    return Speculator(proposers, pace)


def draft_proposer(
    request: ScoringRequest, prefilled: Prefilled, sampler: Sampler, stop_tokens: frozenset[int]
) -> DraftProposer:
    """The draft behind the prompt: from the cache that prefill left, else it reads the prompt when it is first asked."""
    prompt, pair = request.prompt, request.pair
    draft, length = pair.draft, prompt.length
    ready = prefilled.draft_state

    def open_reader() -> ModelReader:
        state = ready
        if state is None:
            _, state = prefill(draft.model, prompt.tokens, torch.arange(length), request.prefill_chunk)
        return ModelReader(draft.model, state, length)

    small, large = cost_of(draft), cost_of(pair.target)
    # Ranks share the target's pass, and none of the draft's.
    target_pass = (large.pass_flops(1, length) + large.overhead_flops()) / pair.ranks.size
    return DraftProposer(
        open_reader,
        sampler,
        stop_tokens,
        vocabulary=prefilled.logits.shape[-1],
        longest_answer=draft.context - length,
        entry_passes=0.0 if ready is not None else small.prefill_with_overhead(length) / target_pass,
        # Short passes are bound by their number of layers as often as by their arithmetic.
        token_passes=max(small.layers / large.layers, small.pass_flops(1, length) / large.pass_flops(1, length)),
    )
