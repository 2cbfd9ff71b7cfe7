"""The cost of proposed tokens, their acceptance rate, and the speedup that follows.

Each proposer has its own acceptance rate and cost of drafting a token; the cost of verification depends on the number of
tokens alone. A cost is time that is added to a round, in target passes over a single token.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low

import numpy as np

from specprefill_cli.decoding.proposers import DraftProposer, LookupProposer, Proposer
from specprefill_cli.decoding.rounds import NO_PROPOSAL, Proposal, Round
from specprefill_cli.decoding.runner import SequenceRunner

LONGEST_PROPOSAL = 16
# Acceptance is averaged over about this many verified tokens, and starts from a guess that counts as three.
ACCEPTANCE_WINDOW = 20.0
GUESS_TRIED, GUESS_RIGHT = 3.0, 2.0
# A cost is the median of this many rounds.
MEASURES = 5
# Assumed cost of verifying a proposed token, before anything was measured.
GUESSED_VERIFICATION = 0.03
# Numbers of proposed tokens whose verification warm-up times, and how often: the first pass of a size may be slow. On a CPU
# the second token of a pass costs far more than the later ones.
WARM_UP_TOKENS, WARM_UP_ROUNDS = (1, 4, LONGEST_PROPOSAL), 2


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


def new_measurements() -> deque[float]:
    """An empty list of the latest measurements."""
    return deque(maxlen=MEASURES)


@dataclass
class SpeculationState:
    """A session's estimates of costs and acceptance; they outlive an answer.

    learns_costs: whether rounds are timed; without, the numbers of proposed tokens repeat, and so do a seed's draws
    sharing: how many answers share their passes; the times of shared passes say nothing about a single answer
    pass_seconds: times of the target's pass over a single token
    drafting: by proposer, costs of drafting a token; verifying: by number of proposed tokens, costs of verifying them
    """

    learns_costs: bool = True
    sharing: int = 1
    pass_seconds: deque[float] = field(default_factory=new_measurements)
    drafting: dict[str, deque[float]] = field(default_factory=partial(defaultdict, new_measurements))
    verifying: dict[int, deque[float]] = field(default_factory=partial(defaultdict, new_measurements))
    acceptance: dict[str, Acceptance] = field(default_factory=partial(defaultdict, Acceptance))

    def without_acceptance(self) -> SpeculationState:
        """A copy with the measured costs and without the acceptance of earlier answers."""
        return SpeculationState(
            pass_seconds=self.pass_seconds.copy(),
            drafting=deepcopy(self.drafting),
            verifying=deepcopy(self.verifying),
        )

    def added_cost(self, proposer: Proposer, count: int) -> float:
        """Cost of a round's proposed tokens, drafting and verification, in target passes: measured, or assumed.

        Answers that share their passes divide the cost of plain decoding among them, so that proposals weigh more.
        """
        measured = self.drafting.get(proposer.name)
        token_cost = median_low(measured) if measured else proposer.token_passes
        return self.sharing * (self.verification_cost(count) + count * token_cost)

    def verification_cost(self, count: int) -> float:
        """Cost of verifying `count` tokens, interpolated between measured numbers of tokens."""
        if not self.verifying:
            return GUESSED_VERIFICATION * count
        counts = sorted(self.verifying)
        costs = [median_low(self.verifying[measured]) for measured in counts]
        if count > counts[-1]:
            return costs[-1] * count / counts[-1]
        return float(np.interp(count, [0, *counts], [0.0, *costs]))

    def learn_costs(self, round_: Round) -> None:
        """Add the times of a round."""
        if not self.learns_costs or self.sharing > 1:
            return
        if not round_.drafted:
            self.pass_seconds.append(round_.target_seconds)
        elif self.pass_seconds:
            plain = median_low(self.pass_seconds)
            self.verifying[round_.drafted].append(max(0.0, round_.target_seconds / plain - 1))
            if not round_.proposal.entered:
                self.drafting[round_.proposal.proposer].append(round_.propose_seconds / plain / round_.drafted)

    def measure(
        self,
        target: SequenceRunner,
        draft: SequenceRunner | None,
        token: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Time the target's passes of plain decoding and of verification, and the draft's if given; `token` is any token.

        Slow first passes do not matter: costs are medians.
        """

        def timed(runner: SequenceRunner, tokens: int) -> float:
            start = clock()
            # Reading the result synchronises the device.
            runner.read_now([token] * tokens, tokens).argmax(-1).tolist()
            return clock() - start

        for _ in range(WARM_UP_ROUNDS):
            self.learn_costs(Round(NO_PROPOSAL, 0, 0.0, timed(target, 1)))
        name = LookupProposer.name if draft is None else DraftProposer.name
        for count in WARM_UP_TOKENS:
            for _ in range(WARM_UP_ROUNDS):
                drafting = 0.0 if draft is None else count * timed(draft, 1)
                proposal = Proposal(name, (token,) * count)
                self.learn_costs(Round(proposal, 0, drafting, timed(target, 1 + count)))


def speedup(acceptance: float, count: int, added_cost: float) -> float:
    """Speed over plain decoding of rounds with `count` proposed tokens: theorem 3.8 of arXiv 2211.17192.

    Its k c is `added_cost`, verification included; equation (1) gives the mean number of tokens that a round yields.
    """
    tokens = count + 1.0 if acceptance >= 1 else (1 - acceptance ** (count + 1)) / (1 - acceptance)
    return tokens / (1 + added_cost)
