"""How many tokens are proposed: acceptance and costs (added time, in target passes) of earlier rounds, and their speedup."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low

import numpy as np

from specprefill_cli.decoding.proposers import Proposer
from specprefill_cli.decoding.sampling import NO_PROPOSAL, Proposal, Round
from specprefill_cli.models.running.passes import ForwardGenerator
from specprefill_cli.record import Verdict

LONGEST_PROPOSAL = 16
# Acceptance is averaged over about this many verified tokens, and starts from a guess that counts as three.
ACCEPTANCE_WINDOW = 20.0
GUESS_TRIED, GUESS_RIGHT = 3.0, 2.0
# A cost is the median of this many rounds.
MEASURES = 5
# Lowest assumed cost of verifying a token beyond the longest proposal that was measured.
LOWEST_VERIFICATION = 0.03
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


@dataclass
class Acceptance:
    """A proposer's history: verified tokens, accepted tokens, and rounds since its last proposal."""

    tried: float = GUESS_TRIED
    right: float = GUESS_RIGHT
    waited: int = 0

    @property
    def rate(self) -> float:
        return self.right / self.tried

    def learn(self, round_: Round) -> None:
        """Add a round; tokens after the first rejected token were not verified. Old rounds fade."""
        self.tried += round_.accepted + (round_.accepted < round_.drafted)
        self.right += round_.accepted
        fade = min(1.0, ACCEPTANCE_WINDOW / self.tried)
        self.tried *= fade
        self.right *= fade


new_measurements = partial(deque[float], maxlen=MEASURES)


@dataclass
class SpeculationState:
    """A session's estimates of costs and acceptance; they outlive an answer.

    learns_costs: whether rounds are timed; without, the numbers of proposed tokens repeat, and so do a seed's draws
    sharing: how many answers share their passes; the times of shared passes say nothing about a single answer
    pass_seconds: times of the target's pass over a single token; prefill: seconds and tokens of its latest prefill
    drafting: by proposer, costs of drafting a token; verifying: by number of proposed tokens, costs of verifying them
    """

    learns_costs: bool = True
    sharing: int = 1
    pass_seconds: deque[float] = field(default_factory=new_measurements)
    prefill: tuple[float, int] = (0.0, 1)
    drafting: dict[str, deque[float]] = field(default_factory=partial(defaultdict, new_measurements))
    verifying: dict[int, deque[float]] = field(default_factory=partial(defaultdict, new_measurements))
    acceptance: dict[str, Acceptance] = field(default_factory=partial(defaultdict, Acceptance))

    def added_cost(self, proposer: Proposer, count: int) -> float:
        """Cost of drafting and verifying, in target passes; it weighs more where answers share plain passes."""
        measured = self.drafting.get(proposer.name)
        token_cost = median_low(measured) if measured else proposer.token_passes
        return self.sharing * (self.verification_cost(count) + count * token_cost)

    def verification_cost(self, count: int) -> float:
        counts = sorted(self.verifying)
        costs = [median_low(self.verifying[measured]) for measured in counts]
        beyond = max(0, count - max(counts, default=0))
        # Assumed of one more token: its cost in prefill, beside the pass that any number takes.
        seconds, tokens = self.prefill
        passes = seconds / median_low(self.pass_seconds) if self.pass_seconds else 0.0
        assumed = max(LOWEST_VERIFICATION, (passes - 1) / tokens)
        return float(np.interp(count, [0, *counts], [0.0, *costs])) + assumed * beyond

    def learn_costs(self, round_: Round) -> None:
        if not self.learns_costs or self.sharing > 1:
            return
        if not round_.drafted:
            self.pass_seconds.append(round_.target_seconds)
        elif self.pass_seconds:
            plain = median_low(self.pass_seconds)
            self.verifying[round_.drafted].append(max(0.0, round_.target_seconds / plain - 1))
            if not round_.proposal.entered:
                self.drafting[round_.proposal.proposer].append(round_.propose_seconds / plain / round_.drafted)


def speedup(acceptance: float, count: int, added_cost: float) -> float:
    """Speed over plain decoding of rounds with `count` proposed tokens: theorem 3.8 of arXiv 2211.17192, k c = `added_cost`."""
    tokens = count + 1.0 if acceptance >= 1 else (1 - acceptance ** (count + 1)) / (1 - acceptance)
    return tokens / (1 + added_cost)


@dataclass(eq=False)
class Speculator:
    """Asks its proposers in turn, each for as many tokens as pay; the first proposal that is not empty is used.

    A round proposes as many tokens as promise the highest speed: none where plain decoding is faster, but now and then a
    single token as a probe. The first round is plain: it measures a target pass after this prompt.

    fixed: proposed tokens of every round; None: as many as pay
    known_tokens: a provisional answer, proposed first while the decoded tokens agree with it; nothing is learnt from it
    refusals: by the name of a considered proposer, why it was last declined, or None
    """

    proposers: Sequence[Proposer]
    state: SpeculationState
    fixed: int | None = None
    known_tokens: tuple[int, ...] = ()
    started: bool = False
    refusals: dict[str, str | None] = field(default_factory=dict)

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
        if self.fixed is not None:
            return self.fixed
        if not self.started:
            return 0
        name, state = proposer.name, self.state
        acceptance = state.acceptance[name]
        costs = ((count, state.added_cost(proposer, count)) for count in range(1, LONGEST_PROPOSAL + 1))
        promised, best_count = max((speedup(acceptance.rate, count, cost), count) for count, cost in costs)
        if promised < WORTHWHILE:
            cost = state.added_cost(proposer, 1)
            accepted = f"{acceptance.rate:.0%} accepted at {cost:.2f} target passes a token"
            self.refusals[name] = f"{name} promises {promised:.2f}x, with {accepted}"
            is_due = acceptance.waited * PROBING_SHARE >= min(cost, HIGHEST_COST)
            return 1 if is_due and not proposer.entry_passes else 0
        if proposer.entry_passes > ENTRY_SHARE * answer_length:
            cost_of_entry = f"at the cost of {proposer.entry_passes:.0f} target passes"
            self.refusals[name] = f"{name} would first prefill the prompt, {cost_of_entry}"
            return 0
        self.refusals[name] = None
        return best_count

    def observe(self, round_: Round) -> None:
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
        for proposer in self.proposers:
            proposer.rollback(length)

    @property
    def verdict(self) -> Verdict:
        """Whether speculation is on: off where every proposer last promised less than plain decoding."""
        reasons = [reason for reason in self.refusals.values() if reason is not None]
        if not reasons or len(reasons) < len(self.refusals):
            return Verdict("on")
        return Verdict("off", f"plain decoding is faster: {'; '.join(reasons)}")
