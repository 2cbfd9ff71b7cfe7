"""Which proposers an answer gets, how many tokens they are asked for, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specprefill_cli.decoding.adaptive import LONGEST_PROPOSAL, SpeculationState, speedup
from specprefill_cli.decoding.proposers import DraftProposer, LookupProposer, Proposer
from specprefill_cli.decoding.rounds import NO_PROPOSAL, Proposal, Round
from specprefill_cli.decoding.runner import DRAFT, SequenceRunner, prefilled_draft
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.errors import UsageError
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.running.passes import ForwardGenerator
from specprefill_cli.prefill.mode import PrefillResult
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import Verdict
from specprefill_cli.settings import AUTO, OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.models.loaded import LoadedPair


# Estimated speedup that a proposal must reach.
WORTHWHILE = 1.05
# A declined proposer probes with a single token once that costs at most this share of the rounds that it has waited.
PROBING_SHARE = 0.015
# The highest cost that delays a probe: a wrong measurement must not rule a proposer out for good.
HIGHEST_COST = 2.0
# A draft that has not read the prompt waits until reading it is at most this share of the answer's passes so far: the
# answer may end at any time.
ENTRY_SHARE = 0.04
# The source of proposed tokens that are known from a provisional answer.
KNOWN = "known"


class Speculator:
    """Asks its proposers in turn, each for as many tokens as pay; the first proposal that is not empty is used.

    A round proposes as many tokens as promise the highest speed: none where plain decoding is faster, but now and then a
    single token as a probe. The first round is plain: it measures a target pass after this prompt.

    state: what earlier rounds showed
    fixed: proposed tokens of every round; None: as many as pay
    known_tokens: a provisional answer, proposed first while the decoded tokens agree with it; nothing is learnt from it
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        state: SpeculationState,
        fixed: int | None = None,
        known_tokens: tuple[int, ...] = (),
    ) -> None:
        self.proposers = proposers
        self.state = state
        self.fixed = fixed
        self.known_tokens = known_tokens
        self.started = False
        # By the name of a considered proposer: why it was last declined, or None.
        self.refusals: dict[str, str | None] = {}

    def propose(self, answer: Sequence[int], limit: int) -> ForwardGenerator[Proposal]:
        """Up to `limit` tokens that may follow the answer."""
        following = self.known_tokens[len(answer) :][: max(limit, 0)]
        if following and self.known_tokens[: len(answer)] == tuple(answer):
            return Proposal(KNOWN, following)
        for proposer in self.proposers if limit > 0 else ():
            count = min(limit, self.count_worthwhile(proposer, len(answer)))
            proposal = (yield from proposer.propose(answer, count)) if count > 0 else NO_PROPOSAL
            if proposal.tokens:
                return proposal
        return NO_PROPOSAL

    def count_worthwhile(self, proposer: Proposer, answer_length: int) -> int:
        """How many tokens a proposer is asked for."""
        if self.fixed is not None:
            return self.fixed
        if not self.started:
            return 0
        name, state = proposer.name, self.state
        acceptance = state.acceptance[name]
        promised, best_count = max(
            (speedup(acceptance.rate, count, state.added_cost(proposer, count)), count)
            for count in range(1, LONGEST_PROPOSAL + 1)
        )
        if promised < WORTHWHILE:
            cost = state.added_cost(proposer, 1)
            self.refusals[name] = (
                f"{name} promises {promised:.2f}x, with {acceptance.rate:.0%} accepted at {cost:.2f} target passes a token"
            )
            is_due = acceptance.waited * PROBING_SHARE >= min(cost, HIGHEST_COST)
            return 1 if is_due and not proposer.entry_passes else 0
        if proposer.entry_passes > ENTRY_SHARE * answer_length:
            self.refusals[name] = (
                f"{name} would first prefill the prompt, at the cost of {proposer.entry_passes:.0f} target passes"
            )
            return 0
        self.refusals[name] = None
        return best_count

    def observe(self, round_: Round) -> None:
        """Learn from a round, unless the number of its tokens is fixed or they were known."""
        if self.fixed is not None or round_.proposal.proposer == KNOWN:
            return
        self.started = True
        self.state.learn_costs(round_)
        for name in self.refusals:
            self.state.acceptance[name].waited += 1
        if round_.drafted:
            acceptance = self.state.acceptance[round_.proposal.proposer]
            acceptance.learn(round_)
            acceptance.waited = 0

    def rollback(self, length: int) -> None:
        """Roll all proposers back to the first `length` tokens of the answer."""
        for proposer in self.proposers:
            proposer.rollback(length)

    @property
    def verdict(self) -> Verdict:
        """Whether speculation is on: off where every proposer last promised less than plain decoding."""
        reasons = [reason for reason in self.refusals.values() if reason is not None]
        if not reasons or len(reasons) < len(self.refusals):
            return Verdict("on")
        return Verdict("off", f"plain decoding is faster: {'; '.join(reasons)}")


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
    """A warning where the draft was named as proposer, and its context has no room after the prompt.

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
    known_tokens: tuple[int, ...] = (),
) -> Speculator | None:
    """The proposers for an answer after a prefilled prompt: first lookup, because it costs next to nothing, then the draft.

    state: the session's; a sampled answer does without, because its tokens depend on how many are proposed (its distribution
    does not), and a seed must draw the same tokens again
    """
    if options.speculate == OFF:
        return Speculator((), state, 0, known_tokens) if known_tokens else None
    proposers: list[Proposer] = []
    if options.proposer in (AUTO, LookupProposer.name):
        proposers.append(LookupProposer(request.prompt.tokens[prefilled.seen_tokens]))
    if draft_may_propose(options, request.pair):
        proposers.append(draft_proposer(request, prefilled, sampler, stop_tokens))
    fixed = None if options.speculate == AUTO else int(options.speculate)
    state = state if sampler.greedy else SpeculationState(learns_costs=False)
    return Speculator(proposers, state, fixed, known_tokens)


def draft_proposer(
    request: PrefillRequest, prefilled: PrefillResult, sampler: Sampler, stop_tokens: frozenset[int]
) -> DraftProposer:
    """The draft after the prompt: with the cache that prefill left, else it prefills at its first proposal.

    Then it reads the tokens in the target's cache, at the same positions: they are fewer, and the answer rests on them.
    """
    pair, draft, length = request.pair, request.draft, prefilled.answer_position
    ready = prefilled.draft_state
    # The state grows while decoding; these are its slots now.
    tokens, positions = request.prompt.tokens[prefilled.seen_tokens], prefilled.state.positions

    def open_runner() -> SequenceRunner:
        if ready is None:
            return prefilled_draft(draft, pair.draft_ranks, tokens, positions, request.prefill_chunk, length)
        return SequenceRunner(draft.model, ready, length, pair.draft_ranks, DRAFT)

    small, large = cost_of(draft), cost_of(pair.target)
    # Ranks divide the target's pass, and the draft's where they share it.
    share = pair.ranks.size / pair.draft_ranks.size
    target_pass = large.pass_flops(1, length) + large.overhead_flops()
    return DraftProposer(
        open_runner,
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
