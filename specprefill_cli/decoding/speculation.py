"""Which proposers an answer gets, how many tokens they propose, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.decoding.adaptive import AdaptivePace, FixedPace, SpeculationState
from specprefill_cli.decoding.proposers import DraftProposer, LookupProposer, Proposer
from specprefill_cli.decoding.reader import DRAFT, ModelReader, prefilled_draft
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.speculative import Speculator
from specprefill_cli.errors import UsageError
from specprefill_cli.models.cost import cost_of
from specprefill_cli.prefill.modes.base import PrefillResult
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.settings import AUTO, OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedPair


def check_proposer(options: Settings, pair: LoadedPair) -> None:
    """Raises UsageError where the draft is named as proposer and cannot propose the target's tokens."""
    if options.speculate == OFF or options.proposer != DraftProposer.name:
        return
    if pair.draft is None:
        raise UsageError("--proposer draft: no draft is loaded; use --proposer lookup, or --speculate off")
    if not pair.same_tokenizer:
        raise UsageError(
            f"--proposer draft: {pair.draft.name} and {pair.target.name} have different tokenizers; use --proposer "
            "lookup, --speculate off, or a --draft with the target's tokenizer"
        )


def draft_may_propose(options: Settings, pair: LoadedPair) -> bool:
    """Whether decoding will need the draft's cache of the prompt."""
    return (
        options.speculate != OFF
        and options.proposer in (AUTO, DraftProposer.name)
        and options.max_new_tokens > 1
        and pair.same_tokenizer
    )


def adapts(options: Settings) -> bool:
    """Whether measured costs decide how much is proposed: not for sampled answers, which a seed must repeat."""
    return options.speculate == AUTO and options.temperature == 0 and options.max_new_tokens > 1


def proposer_warnings(options: Settings, request: PrefillRequest, length: int) -> tuple[str, ...]:
    """A warning where the draft was named as proposer, and its context has no room behind the prompt.

    length: position of the answer's first token
    """
    if options.speculate == OFF or options.proposer != DraftProposer.name:
        return ()
    draft = request.draft
    if length < draft.context:
        return ()
    return (
        f"--proposer draft: the prompt's {length:,} tokens fill {draft.name}'s context of {draft.context:,}; nothing is "
        "proposed: use --proposer lookup",
    )


def choose_speculator(
    request: PrefillRequest,
    prefilled: PrefillResult,
    options: Settings,
    sampler: Sampler,
    stop_tokens: frozenset[int],
    state: SpeculationState,
) -> Speculator | None:
    """The proposers for an answer behind a prefilled prompt: first lookup, because it costs next to nothing, then the draft.

    state: the session's; a sampled answer does without, because its tokens depend on the pace (its distribution does
    not), and a seed must draw the same tokens again
    """
    if options.speculate == OFF:
        return None
    proposers: list[Proposer] = []
    if options.proposer in (AUTO, LookupProposer.name):
        proposers.append(LookupProposer(request.prompt.tokens[prefilled.seen_tokens]))
    if draft_may_propose(options, request.pair):
        proposers.append(draft_proposer(request, prefilled, sampler, stop_tokens))
    if options.speculate != AUTO:
        return Speculator(proposers, FixedPace(int(options.speculate)))
    return Speculator(proposers, AdaptivePace(state if sampler.greedy else SpeculationState(learns_costs=False)))


def draft_proposer(
    request: PrefillRequest, prefilled: PrefillResult, sampler: Sampler, stop_tokens: frozenset[int]
) -> DraftProposer:
    """The draft behind the prompt: from the cache that prefill left, else it prefills at its first proposal.

    Then it reads the tokens that the target's cache holds, at the same positions: fewer, and what the answer rests on.
    """
    pair, draft, length = request.pair, request.draft, prefilled.answer_position
    ready = prefilled.draft_state
    # The state grows while decoding; these are its slots now.
    tokens, positions = request.prompt.tokens[prefilled.seen_tokens], prefilled.state.positions

    def open_reader() -> ModelReader:
        if ready is None:
            return prefilled_draft(draft, pair.draft_ranks, tokens, positions, request.prefill_chunk, length)
        return ModelReader(draft.model, ready, length, pair.draft_ranks, DRAFT)

    small, large = cost_of(draft), cost_of(pair.target)
    # Ranks divide the target's pass, and the draft's where they share it.
    share = pair.ranks.size / pair.draft_ranks.size
    target_pass = large.pass_flops(1, length) + large.overhead_flops()
    return DraftProposer(
        open_reader,
        sampler,
        stop_tokens,
        vocabulary=prefilled.logits.shape[-1],
        longest_answer=draft.context - length,
        entry_passes=0.0 if ready is not None else share * small.prefill_with_overhead(len(tokens)) / target_pass,
        # Short passes are bound by their number of layers as often as by their arithmetic.
        token_passes=max(
            small.layers / large.layers, share * small.pass_flops(1, length) / large.pass_flops(1, length)
        ),
    )
