"""How many tokens to propose: as many as acceptance and cost make worthwhile, none where plain decoding is faster.

Costs are in units of a target pass over one token.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low

import numpy as np

from specprefill_cli.decoding.proposers import DraftProposer, Proposer
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.verification import NO_PROPOSAL, Proposal, Round
from specprefill_cli.record import Verdict

LONGEST_PROPOSAL = 16
# Estimated speedup that a proposal must reach.
WORTHWHILE = 1.05
# Acceptance is averaged over about this many verified tokens, and starts from a guess worth three.
JUDGED_TOKENS = 20.0
GUESS_TRIED, GUESS_RIGHT = 3.0, 2.0
# Rounds whose times a cost is the median of.
MEASURES = 5
# What a verified token is assumed to add to a pass before anything was measured.
GUESSED_WIDTH = 0.03
# Numbers of proposed tokens whose verifying pass warm-up times, and how often.
TIMED_WIDTHS, TIMES = (1, 4, 16), 4
# Share of an answer's passes that may be spent on probing a declined proposer, and the bounds of that allowance: two
# proposers cost an answer of 64 tokens 3 % at most.
PROBING_SHARE, MOST_SAVED, MOST_OWED = 0.015, 0.75, 4.0
# The smallest price of a probe.
SMALLEST_PROBE = 0.1
# A draft that has not read the prompt waits until reading it is at most this share of the answer's passes so far: the
# answer may end at any time.
ENTRY_SHARE = 0.04
# Proposing rounds between two plain ones, which measure a target pass anew.
ROUNDS_BETWEEN_PASSES = 32


@dataclass(frozen=True)
class FixedPace:
    """The same number of tokens in every round."""

    tokens: int

    def count(self, proposer: Proposer, answer_length: int) -> int:
        return self.tokens

    def observe(self, round_: Round) -> None:
        """A fixed pace ignores what happens."""

    def verdict(self) -> Verdict:
        return Verdict("on")


@dataclass
class Costs:
    """Costs in target passes: medians of the latest rounds, and guesses where nothing was measured.

    pass_seconds: the target's pass over one token
    verifying: by number of proposed tokens, the pass that verifies them; drafting: by proposer, one proposed token
    fixed: nothing is learnt, so that the pace, and with it the tokens that a seed draws, repeats
    sharing: answers whose passes run together; their times say nothing about one of them, so that nothing is learnt
    """

    fixed: bool = False
    sharing: int = 1
    pass_seconds: deque[float] = field(default_factory=partial(deque, maxlen=MEASURES))
    verifying: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(partial(deque, maxlen=MEASURES)))
    drafting: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(partial(deque, maxlen=MEASURES)))

    def learn(self, round_: Round) -> None:
        """Add the times of a round."""
        if self.fixed or self.sharing > 1:
            return
        if not round_.drafted:
            self.pass_seconds.append(round_.target_seconds)
        elif self.pass_seconds:
            whole = median_low(self.pass_seconds)
            self.verifying[round_.drafted].append(max(1.0, round_.target_seconds / whole))
            if not round_.proposal.entered:
                self.drafting[round_.proposal.proposer].append(round_.propose_seconds / whole / round_.drafted)

    def measure(
        self, target: ModelReader, draft: ModelReader | None, token: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Time passes over one token and over several, and one of the draft where there is one; `token` is any token.

        Slow first passes do not matter: costs are medians.
        """

        def timed(reader: ModelReader, tokens: int) -> float:
            start = clock()
            # Reading the result synchronises the device.
            reader.read_now([token] * tokens, tokens).argmax(-1).tolist()
            return clock() - start

        for _ in range(TIMES):
            self.learn(Round(NO_PROPOSAL, 0, 0.0, timed(target, 1)))
        name = DraftProposer.name if draft is not None else ""
        for width in TIMED_WIDTHS:
            for _ in range(TIMES):
                drafting = timed(draft, 1) if draft is not None else 0.0
                self.learn(Round(Proposal(name, (token,) * width), 0, drafting * width, timed(target, 1 + width)))

    def passes(self, most: int) -> list[float]:
        """Cost of verifying 0, 1, ... `most` proposed tokens: measured, or interpolated linearly."""
        known = sorted(self.verifying) or [most]
        costs = [
            median_low(self.verifying[count]) if count in self.verifying else 1 + GUESSED_WIDTH * count
            for count in known
        ]
        if known[-1] < most:
            costs.append(1 + (costs[-1] - 1) * most / known[-1])
            known.append(most)
        alone = np.interp(range(most + 1), [0, *known], [1.0, *costs])
        return (1 + (alone - 1) / self.share((alone[-1] - 1) / most)).tolist()

    def share(self, width: float) -> float:
        """What one token's pass costs an answer, in passes alone, where answers share it; width: cost of a token more.

        They divide the fixed part of the cost, so that proposed tokens weigh more.
        """
        width = min(1.0, max(width, 0.0))
        return (1 - width) / self.sharing + width

    def token(self, proposer: Proposer) -> float:
        """Cost of one proposed token."""
        measured = self.drafting.get(proposer.name)
        return median_low(measured) if measured else proposer.token_passes


@dataclass
class Acceptance:
    """One proposer's history: accepted of verified tokens, and target passes that it may spend on probing."""

    tried: float = GUESS_TRIED
    right: float = GUESS_RIGHT
    allowance: float = 0.0

    @property
    def acceptance(self) -> float:
        return self.right / self.tried

    def learn(self, round_: Round) -> None:
        """Add a round; tokens after the first rejected one were not verified. Old rounds fade."""
        self.tried += round_.accepted + (round_.accepted < round_.drafted)
        self.right += round_.accepted
        fade = min(1.0, JUDGED_TOKENS / self.tried)
        self.tried *= fade
        self.right *= fade

    def earn(self, passes: float) -> None:
        """Change the allowance within its bounds."""
        self.allowance = max(-MOST_OWED, min(MOST_SAVED, self.allowance + passes))


@dataclass
class SpeculationState:
    """What a session knows about its pair's costs and acceptance; it outlives an answer."""

    costs: Costs = field(default_factory=Costs)
    records: dict[str, Acceptance] = field(default_factory=lambda: defaultdict(Acceptance))


class AdaptivePace:
    """Proposes as many tokens as promise the highest speed, none where plain decoding is faster, and probes now and then.

    The first round is plain: it measures a target pass after this prompt.
    """

    def __init__(self, state: SpeculationState) -> None:
        self.state = state
        self.since_pass = ROUNDS_BETWEEN_PASSES
        self.asked: dict[str, Proposer] = {}
        self.declined: dict[str, str] = {}

    def count(self, proposer: Proposer, answer_length: int) -> int:
        if self.since_pass >= ROUNDS_BETWEEN_PASSES:
            return 0
        costs, record = self.state.costs, self.state.records[proposer.name]
        token, passes = costs.token(proposer), costs.passes(LONGEST_PROPOSAL)
        promised, best = max(
            (speedup(record.acceptance, count, token, passes[count]), count) for count in range(1, LONGEST_PROPOSAL + 1)
        )
        self.asked[proposer.name] = proposer
        self.declined.pop(proposer.name, None)
        if promised >= WORTHWHILE:
            if proposer.entry_passes <= ENTRY_SHARE * answer_length:
                return best
            self.declined[proposer.name] = (
                f"{proposer.name} would first prefill the prompt, at the cost of {proposer.entry_passes:.0f} target passes"
            )
            return 0
        self.declined[proposer.name] = (
            f"{proposer.name} promises {promised:.2f}x, with {record.acceptance:.0%} accepted at {token:.2f} target "
            "passes a token"
        )
        # Capped, so that one wrong measurement cannot rule a proposer out for good.
        price = min(MOST_SAVED, max(SMALLEST_PROBE, token + passes[1] - 1))
        return 1 if record.allowance >= price and not proposer.entry_passes else 0

    def observe(self, round_: Round) -> None:
        costs, records = self.state.costs, self.state.records
        costs.learn(round_)
        self.since_pass = self.since_pass + 1 if round_.drafted else 0
        for name in self.asked:
            records[name].earn(PROBING_SHARE * (round_.accepted + 1))
        if round_.drafted:
            proposer = self.asked[round_.proposal.proposer]
            spent = costs.passes(round_.drafted)[-1] + round_.drafted * costs.token(proposer)
            records[proposer.name].learn(round_)
            records[proposer.name].earn(round_.accepted + 1 - spent)

    def verdict(self) -> Verdict:
        """Off when every proposer last promised less than plain decoding."""
        if not self.asked or len(self.declined) < len(self.asked):
            return Verdict("on")
        return Verdict("off", f"plain decoding is faster: {'; '.join(self.declined.values())}")


def expected_tokens(acceptance: float, count: int) -> float:
    """Tokens that a round yields on average when `count` are proposed: equation (1) of arXiv 2211.17192."""
    if acceptance >= 1:
        return count + 1.0
    return (1 - acceptance ** (count + 1)) / (1 - acceptance)


def speedup(acceptance: float, count: int, token_passes: float, target_passes: float = 1.0) -> float:
    """Speed over plain decoding: theorem 3.8 of arXiv 2211.17192, with the true cost of the verifying pass.

    token_passes: cost of one proposed token (the paper's c); target_passes: cost of verifying all of them, which the
    paper equates with that of one token
    """
    return expected_tokens(acceptance, count) / (target_passes + count * token_passes)
